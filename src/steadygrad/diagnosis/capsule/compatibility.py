"""Whether a capsule fits the model, optimizer and batches it is to be replayed in. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.nested_tensors import named_tensors_in
from ...engine.validate import clean_name
from ...records.errors import CapsuleError
from .capsule import Capsule


def change_since(
    facts: Mapping[str, Any], saved: Mapping[str, Any], live: Mapping[str, Any], optimizers: Sequence[Optimizer]
) -> str | None:
    """How the live state differs from the saved one, as one sentence; None if it can be put in place."""
    for part, word in (("parameters", "parameter"), ("frozen", "frozen parameter"), ("buffers", "buffer")):
        if part not in saved:
            continue  # left out for its size
        then = {clean_name(name): value for name, value in saved[part].items()}
        now = {clean_name(name): value for name, value in live[part].items()}
        if missing := sorted(set(then) - set(now)):
            return f"The capsule has a {word} {missing[0]} and the model has none of that name."
        if added := sorted(set(now) - set(then)):
            return f"The model has a {word} {added[0]} and the capsule has none of that name."
        for name, value in then.items():
            if not isinstance(value, Tensor) or _kind(value) != _kind(now[name]):
                had = _kind(value) if isinstance(value, Tensor) else type(value).__name__
                return f"The {word} {name} was {had} and is {_kind(now[name])} now."
    then_optimizers = [(str(each["type"]), list(each["sizes"])) for each in facts["optimizers"]]
    now_optimizers = [(type(o).__name__, [len(group["params"]) for group in o.param_groups]) for o in optimizers]
    for (then_type, then_sizes), (now_type, now_sizes) in zip(then_optimizers, now_optimizers, strict=False):
        if then_type != now_type:
            return f"The optimizer was {then_type} and is {now_type} now."
        if then_sizes != now_sizes:
            return f"The {now_type} had groups of {then_sizes} parameters and has {now_sizes} now."
    if len(then_optimizers) != len(now_optimizers):
        return f"There were {len(then_optimizers)} optimizers and there are {len(now_optimizers)} now."
    return None


def batches_in_place(capsule: Capsule, given: Sequence[Any] | None, device: torch.device) -> list[Any]:
    """The micro-batches of the step: the capsule's, each tensor on the kind of device it was on, or the caller's."""
    if capsule.batches is not None:
        places = capsule.facts["batch_on_device"]
        return [_placed(batch, set(keys), device) for batch, keys in zip(capsule.batches, places, strict=True)]
    if given is None:
        raise CapsuleError(
            "The capsule was kept without its batches (capsule='redact'): return them from the entry function, in a "
            "mapping, as a list of micro-batches under 'batches'."
        )
    shapes = [
        {key: {"shape": list(tensor.shape), "dtype": str(tensor.dtype)} for key, tensor in named_tensors_in(batch)}
        for batch in given
    ]
    if shapes != capsule.shapes:
        raise CapsuleError(
            "The batches that the entry function returned are not those of the step: their number, names, shapes or "
            "dtypes differ from what the capsule remembers."
        )
    return list(given)


def _placed(value: Any, keys: set[str], device: torch.device, path: str = "") -> Any:
    if isinstance(value, Tensor):
        return value.to(device) if path in keys else value
    if isinstance(value, dict):
        return {key: _placed(item, keys, device, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(
            _placed(item, keys, device, f"{path}.{index}" if path else str(index)) for index, item in enumerate(value)
        )
    return value


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
