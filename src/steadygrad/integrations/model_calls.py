"""What a loop asked its model, kept so that it can be asked again.

Many loops train on a loss that the model itself computes (`model(**batch).loss`). If the very tensor that backward was
called on came out of one call of the model, that call is all there is to the step's forward, and it can be run again.
If the loss was computed outside, only the loop could do that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class ModelCalls:
    """Listens to a model's training calls between two backwards."""

    def __init__(self, model: nn.Module, before: Callable[[], Any], looks_away: Callable[[], bool]) -> None:
        """`before` is called ahead of the first call; while `looks_away()` is true nothing is noted."""
        self._before = before
        self._looks_away = looks_away
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []
        self._begun = False
        # First and last among the model's hooks, so that what other hooks move is seen to move.
        self._handles = [
            model.register_forward_pre_hook(self._entering, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._left, with_kwargs=True),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def taken(self, loss: Any) -> dict[str, Any] | None:
        """What `run_call` needs to make `loss` again, or None; and begins anew."""
        calls, self._calls, self._begun = self._calls, [], False
        if len(calls) != 1:
            return None
        args, kwargs, output = calls[0]
        place = _place_of(loss, output)
        return None if place is None else {"args": list(args), "kwargs": dict(kwargs), "loss": place}

    def _entering(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if model.training and torch.is_grad_enabled() and not self._looks_away() and not self._begun:
            self._begun = True
            self._before()

    def _left(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if model.training and torch.is_grad_enabled() and not self._looks_away():
            self._calls.append((args, kwargs, output))


def run_call(model: nn.Module, call: Mapping[str, Any]) -> Tensor:
    """The loss of a call that was taken, computed again."""
    output = model(*call["args"], **call["kwargs"])
    for step in call["loss"]:
        output = getattr(output, step[1:]) if step.startswith(".") else output[_index(step)]
    loss: Tensor = output
    return loss


def _index(step: str) -> Any:
    return int(step) if step.isdigit() else step.removeprefix("=")


def _place_of(loss: Any, output: Any) -> list[str] | None:
    """The way from a model's output to this very tensor, as names; None if it is not in there."""
    if loss is output:
        return []
    if isinstance(output, Mapping):
        found = next((name for name, value in output.items() if value is loss), None)
        return None if not isinstance(found, str) else [f"={found}"]
    if isinstance(output, list | tuple):
        number = next((n for n, value in enumerate(output) if value is loss), None)
        return None if number is None else [str(number)]
    return [".loss"] if getattr(output, "loss", None) is loss else None
