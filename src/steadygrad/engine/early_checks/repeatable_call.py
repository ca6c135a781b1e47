"""Whether a model may be called once more without anyone noticing.

Weights, buffers, attributes, modes and random numbers can be restored after a call. What a forward prints, counts in a
global variable or hands to a hook of the program cannot, so such a model is not called again.
"""

from __future__ import annotations

import dis
import sysconfig
from collections import Counter, deque
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))
_SPEAKS = frozenset({"print", "open", "input", "write", "writelines", "info", "warning", "add_scalar", "all_reduce"})
_STORES = frozenset({"STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL"})
_KEEPERS = (list, dict, set, deque, Counter)


def why_not_repeat(model: nn.Module) -> str | None:
    """Why this model must not be called again, as a clause; None where it may."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return "every operation is traced by the program"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "it may exchange values with other processes"
    for name, part in model.named_modules():
        hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
        if any(not type(hook).__module__.startswith("steadygrad.") and not _is_ours(hook) for hook in hooks):
            return f"the program has a hook on {name or 'the model'}"
        forward = type(part).forward
        if "forward" in vars(part) or not isinstance(forward, FunctionType):
            return f"the forward of {name or 'the model'} was replaced"
        if not forward.__code__.co_filename.startswith(_LIBRARIES) and (reason := _effect(forward)):
            return reason
    return None


def _is_ours(hook: Any) -> bool:
    """Whether a bound method of ours is the hook."""
    return type(getattr(hook, "__self__", None)).__module__.startswith("steadygrad.")


def _effect(forward: FunctionType) -> str | None:
    """What a function written in the program leaves behind, as far as its code shows."""
    for code in _codes(forward.__code__):
        if said := _SPEAKS & set(code.co_names):
            return f"its forward calls {sorted(said)[0]}"
        if any(instruction.opname in _STORES for instruction in dis.get_instructions(code)):
            return "its forward sets a variable outside of itself"
        if kept := [name for name in code.co_names if isinstance(forward.__globals__.get(name), _KEEPERS)]:
            return f"its forward uses {kept[0]}, which the program keeps"
    cells = [cell.cell_contents for cell in forward.__closure__ or () if _filled(cell)]
    return "its forward uses a container of the program's" if any(isinstance(c, _KEEPERS) for c in cells) else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
