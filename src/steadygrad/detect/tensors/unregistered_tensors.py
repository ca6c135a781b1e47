"""What a model uses and does not know: parameters in a plain list instead of a ModuleList, tensors as plain attributes.

`model.parameters()` leaves them out, so no optimizer gets them, `.to(device)` and `state_dict()` miss them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .foreign_objects import hasattr, isinstance, items_in


def stray_parameters(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Trainable parameters in plain containers of the model's modules, with the way to them as a name."""
    known = {id(parameter) for parameter in model.parameters()}
    for owner, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_") or not isinstance(value, list | tuple | Mapping):
                continue
            items = items_in(value) if isinstance(value, Mapping) else enumerate(value)
            for key, item in items:
                place = f"{owner}.{attribute}[{key}]" if owner else f"{attribute}[{key}]"
                for name, parameter in _parameters_of(item):
                    if parameter.requires_grad and id(parameter) not in known:
                        known.add(id(parameter))
                        yield f"{place}.{name}" if name else place, parameter


def plain_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that modules keep as plain attributes: no parameter, no buffer, and read in forward all the same."""
    for owner, module in model.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                yield f"{owner}.{attribute}" if owner else attribute, value


def _parameters_of(item: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(item, nn.Parameter):
        yield "", item
    elif isinstance(item, nn.Module):
        yield from list(item.named_parameters()) if hasattr(item, "_parameters") else ()
