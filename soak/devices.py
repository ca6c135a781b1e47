"""Trains a regime, which is written for a CPU, on another device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .training import Training

CPU, VARIABLE = "cpu", "STEADY_SOAK_DEVICE"
_OF_A_MODULE = set(vars(nn.Module()))
"""What `Module.to` looks after itself."""


def choose_device(name: str) -> None:
    """For this process and those it starts."""
    os.environ[VARIABLE] = name
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def chosen_device() -> str:
    return os.environ.get(VARIABLE, CPU)


def on_chosen_device(training: Training) -> Training:
    """The same training with its model, its batches and the tensors its losses hold on the chosen device."""
    device = chosen_device()
    if device == CPU:
        return training
    torch.use_deterministic_algorithms(True, warn_only=True)
    training.device = device
    seen: set[int] = set()
    for model in [*training.models, *([training.averaged] if training.averaged is not None else [])]:
        model.to(device)
        for module in model.modules():
            _move_attributes(module, device)
    for player in training.players:
        _move_held(player.loss, device, seen)
    for optimizer in training.optimizers:
        optimizer.load_state_dict(optimizer.state_dict())
    training.batches = _moved(training.batches, device)
    if training.scaler is not None:
        training.scaler = _scaler_there(training.scaler, device)
    return training


def _scaler_there(scaler: torch.amp.GradScaler, device: str) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(
        device,
        init_scale=scaler.get_scale(),
        growth_factor=scaler.get_growth_factor(),
        backoff_factor=scaler.get_backoff_factor(),
        growth_interval=scaler.get_growth_interval(),
    )


def _moved(batches: Iterator[Any], device: str) -> Iterator[Any]:
    for batch in batches:
        yield tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch)


def _move_held(function: Any, device: str, seen: set[int]) -> None:
    """Moves the tensors that a function, a partial, a method or an object to call keeps."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, partial):
        function.__setstate__(  # type: ignore[attr-defined]
            (function.func, _there(function.args, device), _there(function.keywords, device), function.__dict__)
        )
        _move_held(function.func, device, seen)
    elif isinstance(function, FunctionType):
        for cell in function.__closure__ or ():
            _move_cell(cell, device, seen)
        if function.__defaults__:
            function.__defaults__ = _there(function.__defaults__, device)
    elif (owner := getattr(function, "__self__", function)) is not None:
        _move_attributes(owner, device)


def _move_cell(cell: CellType, device: str, seen: set[int]) -> None:
    try:
        value = cell.cell_contents
    except ValueError:
        return
    if isinstance(value, nn.Module):
        value.to(device)
    elif callable(value):
        _move_held(value, device, seen)
    elif isinstance(value, Tensor | dict | list | tuple):
        cell.cell_contents = _there(value, device)
    elif hasattr(value, "__dict__"):
        _move_attributes(value, device)


def _move_attributes(owner: Any, device: str) -> None:
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if name not in _OF_A_MODULE and isinstance(value, Tensor | dict | list | tuple):
            setattr(owner, name, _there(value, device))


def _there(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value if value.device.type == device or isinstance(value, nn.Parameter) else value.to(device)
    if isinstance(value, dict):
        for key, inner in value.items():
            value[key] = _there(inner, device)
        return value
    if type(value) is list:
        value[:] = [_there(inner, device) for inner in value]
        return value
    return tuple(_there(inner, device) for inner in value) if type(value) is tuple else value
