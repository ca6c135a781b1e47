"""The hooks of ours on a module, left out of what is copied, saved or scripted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from ...detect.tensors.foreign_objects import isinstance

_HOOKS = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
}
"""The hooks of a module, and the flags that torch keeps for them."""


def without_our_hooks(state: dict[str, Any]) -> dict[str, Any]:
    """What is copied or saved of a module, less our hooks and their flags."""
    for name, flags in _HOOKS.items():
        ours = _ours(state.get(name))
        for each in (name, *flags) if ours else ():
            state = {**state, each: type(state[each])((k, v) for k, v in state[each].items() if k not in ours)}
    return state


@contextlib.contextmanager
def our_hooks_off(module: Any) -> Iterator[None]:
    """Inside, this module and its parts carry no hook of ours: some tools want to compile what they find."""
    taken: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
    for part in module.modules() if isinstance(module, nn.Module) else ():
        for name, flags in _HOOKS.items():
            ours = _ours(vars(part).get(name))
            for each in (name, *flags) if ours else ():
                hooks = vars(part)[each]
                taken.append((hooks, hooks.copy()))
                for key in ours:
                    hooks.pop(key, None)
    try:
        yield
    finally:
        for hooks, before in taken:
            hooks.clear()
            hooks.update(before)


def _ours(hooks: dict[Any, Any] | None) -> list[Any]:
    return [key for key, hook in (hooks or {}).items() if type(hook).__module__.startswith("steadygrad.")]
