"""Other tensors in the part of a run's parameters for a while: in its modules, its optimizers and its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...engine.state.training_state import TrainingState, copy_tree


class ParameterHolder(Protocol):
    """Whose parameters others play: a guard's program, or a loop's optimizer and models."""

    model: nn.Module
    parameters: Sequence[Tensor]

    @property
    def optimizers(self) -> Sequence[Optimizer]: ...


def everything_swapped(program: ParameterHolder) -> dict[int, Tensor]:
    """Every parameter of the model, the program and its optimizers, by identity, in a fixed order."""
    owned = [p for optimizer in program.optimizers for group in optimizer.param_groups for p in group["params"]]
    return {id(p): p for p in [*program.model.parameters(), *program.parameters, *owned]}


@contextmanager
def swapped_for(
    program: ParameterHolder,
    state: TrainingState,
    copies: Mapping[int, Tensor],
    states: Sequence[Mapping[int, Any]] | None = None,
) -> Iterator[None]:
    """`copies[id(p)]` stands in for p for the block, with `states` (by id) or its own copies for its moments."""
    played = everything_swapped(program)
    back = {id(copy): played[key] for key, copy in copies.items()}
    parameters, moments = program.parameters, [dict(optimizer.state) for optimizer in program.optimizers]
    try:  # also around the exchange itself: what fails half-way is undone
        _recast(program, state, copies)
        for number, (optimizer, kept) in enumerate(zip(program.optimizers, moments, strict=True)):
            optimizer.state.clear()
            for parameter, values in kept.items():
                given = values if states is None else states[number].get(id(parameter), values)
                optimizer.state[copies.get(id(parameter), parameter)] = copy_tree(given, torch.clone)
        yield
    finally:
        _recast(program, state, back)
        program.parameters = parameters
        for optimizer, kept in zip(program.optimizers, moments, strict=True):
            optimizer.state.clear()
            optimizer.state.update(kept)


def _recast(program: ParameterHolder, state: TrainingState, others: Mapping[int, Tensor]) -> None:
    for module in program.model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in others:
                module._parameters[name] = others[id(parameter)]  # type: ignore[assignment]
    for optimizer in program.optimizers:
        for group in optimizer.param_groups:
            group["params"] = [others.get(id(p), p) for p in group["params"]]
    program.parameters = [others.get(id(p), p) for p in program.parameters]
    state.exchange_parameters(others)
