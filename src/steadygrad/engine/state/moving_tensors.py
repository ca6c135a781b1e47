"""Tensors on a module that a forward may move: where each lies, and frozen parameters that are seen to move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.readable_tensors import has_plain_memory, has_values, write_values

_LOOKS = 3
_MOST_BYTES = 64 << 20
"""Frozen parameters that move are copied before every forward; more bytes than this are not."""


@dataclass(slots=True)
class Slot:
    """One tensor that lives on a module (a buffer or a plain attribute)."""

    name: str
    module: nn.Module
    get: Callable[[], Any]
    put: Callable[[Any], None]
    tensor: Tensor
    version: int
    cold: Tensor | None
    training: bool
    hot: bool = False

    def differs(self) -> bool:
        """Whether its value is no longer that of the cold copy, to the bit. Reads the device."""
        now = self.get()
        if now is not self.tensor or self.cold is None:
            return True
        if not has_plain_memory(now):
            return bool(now._version != self.version)
        here = now.detach().to("cpu")
        # Bytes, because a NaN differs from itself and must not.
        return here.shape != self.cold.shape or not torch.equal(bytes_of(here), bytes_of(self.cold))

    def moved(self) -> bool:
        now = self.get()
        return now is not self.tensor or (isinstance(now, Tensor) and now._version != self.version)


class LeftAlone:
    """Tensors on a module that cannot be copied, so that nothing of them is restored. Only which objects they are, and
    how often they were written to, is known."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Callable[[], Any], int, int]] = {}

    def note(self, name: str, get: Callable[[], Any], tensor: Tensor) -> None:
        self._known.setdefault(name, (get, id(tensor), tensor._version))

    def moved(self) -> list[str]:
        """Those that are other objects than they were, or were written to."""
        now = ((name, get(), key, version) for name, (get, key, version) in self._known.items())
        return [name for name, each, key, version in now if id(each) != key or each._version != version]


class FrozenParameters:
    """Parameters without a gradient. Most of them never move, and they may be most of a large model: none is copied
    until a forward is seen to move it, as the encoder of the keys moves in momentum contrast. Looked for in the first
    forwards and in one after each audit. Host work only."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._all = _frozen_in(modules, 0)
        self.looks = _LOOKS if self._all else 0
        """Forwards that are still to be looked at."""
        self.marks: dict[str, tuple[int, int]] = {}
        """How often each was written to before the forward under way, if that is looked at."""
        self._bytes = 0
        self.not_restored: list[str] = []
        """Those that move and take too many bytes to be copied before every forward."""

    def include(self, modules: Sequence[nn.Module], first: int) -> None:
        """Further modules, numbered from `first`; the forward under way is looked at for them."""
        found = _frozen_in(modules, first)
        self._all |= found
        self.marks |= {name: _mark(parameter) for name, (_, _, parameter) in found.items()}
        self.looks = max(self.looks, _LOOKS - 1) if found else self.looks

    def look_again(self) -> None:
        """Look at the next forward as well."""
        self.looks = max(self.looks, 1) if self._all else 0

    def before_forward(self) -> None:
        """Look at this forward: note how often each was written to."""
        self.looks -= 1
        self.marks = {name: _mark(parameter) for name, (_, _, parameter) in self._all.items()}

    def moved(self) -> dict[str, Slot]:
        """Those that the forward has moved, which from now on are copied before each."""
        marks, self.marks = self.marks, {}
        moved = [
            name
            for name, (module, own, parameter) in self._all.items()
            if module._parameters.get(own) is parameter
            and not parameter.requires_grad
            and name in marks
            and _mark(parameter) != marks[name]
        ]
        self._bytes += sum(self._all[name][2].nbytes for name in moved)
        if self._bytes > _MOST_BYTES:
            self.not_restored += moved
            for name in moved:
                del self._all[name]
            return {}
        return self.named(moved)

    def named(self, names: Iterable[str]) -> dict[str, Slot]:
        """Those of these names that are known and not copied yet."""
        found = {}
        for name in names:
            if name in self._all:
                module, own, parameter = self._all.pop(name)
                home = module._parameters
                get, put = getter(home, own), setter(home, own)
                found[name] = Slot(
                    name, module, get, put, parameter, parameter._version, None, module.training, hot=True
                )
        return found


def _frozen_in(modules: Sequence[nn.Module], first: int) -> dict[str, tuple[nn.Module, str, nn.Parameter]]:
    return {
        prefix_of(index) + (f"{path}.{name}" if path else name): (module, name, parameter)
        for index, root in enumerate(modules, first)
        for path, module in root.named_modules()
        for name, parameter in module._parameters.items()
        if type(parameter) is nn.Parameter and not parameter.requires_grad and _is_plain(parameter)
    }


def prefix_of(index: int) -> str:
    """What the names in a root module begin with, by its place."""
    return f"loss_fn{index}." if index else ""


def _is_plain(parameter: nn.Parameter) -> bool:
    return parameter.layout is torch.strided and parameter.device.type != "meta" and type(parameter.data) is Tensor


def _mark(parameter: nn.Parameter) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()


def getter(home: Any, name: str) -> Callable[[], Any]:
    if isinstance(home, dict):
        return lambda: home.get(name)
    return lambda: dict(home.items()).get(name)  # of a scripted module


def setter(home: Any, name: str) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        home[name] = value

    return put


def bytes_of(tensor: Tensor) -> Tensor:
    # Not `contiguous`: one element of an expanded tensor has a stride of 0 and counts as contiguous.
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


@torch.no_grad()
def restore_what_turned_bad(taken: Iterable[tuple[Slot, Tensor, Tensor]]) -> list[str]:
    """Of tensors that were taken before a forward, those that were finite and are not any more get the values that they
    had; their names. Whatever is finite stays as it is: a program may count what it leaves out. Reads the device."""
    restored = []
    for slot, tensor, before in taken:
        now = slot.get()
        if not _is_bad(now) or _is_bad(before):
            continue
        if now is not tensor:
            slot.put(tensor)
        write_values(tensor.data, before)
        restored.append(slot.name)
    return restored


def _is_bad(value: Any) -> bool:
    floating = isinstance(value, Tensor) and has_values(value) and (value.is_floating_point() or value.is_complex())
    return floating and not bool(torch.isfinite(value.detach()).all())
