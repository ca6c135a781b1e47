"""What a training leaves behind, as one digest per tensor or value, so that runs of two processes can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .training import Training

State = dict[str, str]


def state_of(training: Training) -> State:
    """Digests of parameters, buffers, optimizer and scheduler state, learning rates, loss scale and random numbers."""
    state: State = {}
    for place, value in _parts(training):
        state.update({name: _digest(leaf) for name, leaf in _leaves(place, value)})
    return state


def differences(one: State, other: State) -> list[str]:
    """Names whose bits differ, or that only one side has."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def bad_values(training: Training) -> list[str]:
    """Names of what the run leaves behind that holds a NaN or an infinity."""
    found = []
    for place, value in _parts(training):
        for name, leaf in _leaves(place, value):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
                found.append(name)
    return found


def _parts(training: Training) -> Iterator[tuple[str, Any]]:
    for index, model in enumerate(training.models):
        yield f"model{index}.parameter", dict(model.named_parameters())
        yield f"model{index}.buffer", dict(model.named_buffers())
    for index, optimizer in enumerate(training.optimizers):
        yield f"optimizer{index}", optimizer.state_dict()
    if training.scheduler is not None:
        yield "scheduler", training.scheduler.state_dict()
    if training.scaler is not None:
        yield "scaler", training.scaler.state_dict()
    if training.averaged is not None:
        yield "averaged", training.averaged.state_dict()
    yield "random numbers", torch.get_rng_state()
    if training.device != "cpu":
        yield "random numbers of the device", torch.get_device_module(training.device).get_rng_state()


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{place}.{key}", inner)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _leaves(f"{place}.{index}", inner)
    elif isinstance(value, Tensor | bool | int | float | str | None):
        yield place, value


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    plain = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
    raw = plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{plain.dtype}{tuple(plain.shape)}{hashlib.sha256(raw).hexdigest()[:24]}"
