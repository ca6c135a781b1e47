"""What a loop asked its model, kept so that it can be asked again.

Many loops train on a loss that the model itself computes (`model(**batch).loss`). If the tensor that backward is
called on came out of one call of the model, as it is or multiplied and divided by constants, that call is all there is
to the step's forward, and it can be run again. If the loss was computed outside, only the loop could do that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from ...detect.loop.model_calls import callable_parts
from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.quiet_hook import QuietHook, halting
from ...detect.tensors.torch_private import innermost_transform

NOT_HEARD = "no call of the model was heard: its running statistics and random numbers are not restored"
_NO_WEIGHT = nn.Parameter(torch.empty(0))
_NOT_ALONE = 2
"""What the call of a part counts: it cannot be made again in place of the model's."""


class ModelCalls:
    """Listens to a model's training calls between two backwards, or to those of its parts where it has no forward."""

    def __init__(
        self, model: nn.Module, before: Callable[[], Any], looks_away: Callable[[], bool],
        left_out: Callable[[Any, Any], bool], failed: Callable[[Exception], Any],
    ) -> None:  # fmt: skip
        """`before` is called ahead of the first call; while `looks_away()` is true nothing is noted. A fault of ours
        goes to `failed`. `left_out(given, output)` says whether a call that no backward followed was left out."""
        self._left_out, self._before = left_out, before
        self._looks_away = looks_away
        self._first: tuple[tuple[Any, ...], dict[str, Any], Any] | None = None
        self._num_calls = 0
        self._begun = False
        # First and last among the model's hooks, so that what other hooks move is seen to move.
        entering, left = (QuietHook(call, halting(failed)) for call in (self._entering, self._left))
        self._model, self._handles = model, []
        for part in callable_parts(model):
            self._handles.append(part.register_forward_pre_hook(entering, with_kwargs=True, prepend=True))
            self._handles.append(part.register_forward_hook(left, with_kwargs=True))

    @property
    def begun(self) -> bool:
        """Whether a call was heard since the last backward."""
        return self._begun

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def taken(self, loss: Any) -> tuple[dict[str, Any] | None, Any]:
        """What `run_call` needs to make `loss` again, or None, and what the model was given first; and begins anew.

        Call it before backward frees the graph. Host work only."""
        first, num_calls = self._first, self._num_calls
        self._begin_anew()
        given = first[:2] if first is not None else None
        if first is None or num_calls != 1:
            return None, given
        args, kwargs, output = first
        place, factor = _place_of(loss, output), None
        if place is None:
            place, factor = _scaled_place_of(loss, output)
        if place is None:
            return None, given
        call = {"args": list(args), "kwargs": dict(kwargs), "loss": place}
        return (call if factor is None else {**call, "factor": factor}), given

    def _entering(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not model.training or not torch.is_grad_enabled() or self._looks_away() or _is_called_by_function(model):
            return
        self.went_on()
        if not self._begun:
            self._begun = True
            self._before()

    def went_on(self) -> None:
        """The model is called again, or the loop is over, with no backward in between: a loop may need several calls
        for one loss, but what is not finite it has left out. Reads the device."""
        if self._first is not None and self._num_calls == 1 and self._left_out(self._first[:2], self._first[2]):
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._first, self._num_calls, self._begun = None, 0, False

    def _left(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if model.training and torch.is_grad_enabled() and not self._looks_away():
            if _is_called_by_function(model):
                self._num_calls += _NOT_ALONE
                return
            self._num_calls += 1 if model is self._model else _NOT_ALONE
            # Of several calls no output is kept: a loop may make any number of them, each with its graph.
            self._first = (args, kwargs, output) if self._first is None else (*self._first[:2], None)


def _is_called_by_function(model: nn.Module) -> bool:
    """Whether vmap or grad call the model, or `functional_call` with other weights: these are of no use once it is
    over, and the state must not be looked at meanwhile."""
    return innermost_transform() is not None or not isinstance(next(model.parameters(), _NO_WEIGHT), nn.Parameter)


def run_call(model: nn.Module, call: Mapping[str, Any]) -> Tensor:
    """The loss of a call that was taken, computed again."""
    output = model(*call["args"], **call["kwargs"])
    for step in call["loss"]:
        output = getattr(output, step[1:]) if step.startswith(".") else output[_index(step)]
    loss: Tensor = output
    return loss if call.get("factor") is None else loss * call["factor"].to(loss)


def _scaled_place_of(loss: Any, output: Any) -> tuple[list[str] | None, Tensor | None]:
    """Where in a model's output the number is that `loss` was made of by constants alone, and by which factor."""
    for place, value in _numbers_in(output):
        made_by = value.grad_fn
        if isinstance(loss, Tensor) and made_by is not None and only_through(loss.grad_fn, partial(is_, made_by)):
            (factor,) = torch.autograd.grad(loss, value, retain_graph=True, allow_unused=True)
            return (place, factor.detach()) if factor is not None else (None, None)
    return None, None


def _numbers_in(output: Any) -> list[tuple[list[str], Tensor]]:
    """The single numbers with a graph that a model returned, with the way to each."""
    if isinstance(output, Mapping):
        found = [([f"={name}"], value) for name, value in output.items() if isinstance(name, str)]
    elif isinstance(output, list | tuple):
        found = [([str(number)], value) for number, value in enumerate(output)]
    else:
        found = [([], output), ([".loss"], getattr(output, "loss", None))]
    return [(place, value) for place, value in found if isinstance(value, Tensor) and value.numel() == 1]


def only_through(start: Any, wanted: Callable[[Any], bool], most: int = 16) -> bool:
    """Whether everything that feeds a node of a graph comes through one that is wanted, a few nodes away."""
    pending, reached = [start], False
    for _ in range(most):
        if not pending:
            return reached
        node = pending.pop()
        if node is not None and wanted(node):
            reached = True
            continue
        above = [each for each, _ in node.next_functions if each is not None] if node is not None else []
        if not above:
            return False
        pending += above
    return False


def _index(step: str) -> Any:
    return int(step) if step.isdigit() else step.removeprefix("=")


def _place_of(loss: Any, output: Any) -> list[str] | None:
    """The way from a model's output to this tensor, as names; None if it is not in there."""
    if loss is output:
        return []
    if isinstance(output, Mapping):
        found = next((name for name, value in output.items() if value is loss), None)
        return None if not isinstance(found, str) else [f"={found}"]
    if isinstance(output, list | tuple):
        number = next((n for n, value in enumerate(output) if value is loss), None)
        return None if number is None else [str(number)]
    return [".loss"] if getattr(output, "loss", None) is loss else None
