"""Gradients let through where the program stops them: a scope without gradients, and a choice made by index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.torch_private import set_grad_enabled
from ..replay.replay_step import ReplayChange
from ..replay.replayable import Replayable
from ..trace.user_frames import current_stack

_LOOKUPS = frozenset({"one_hot", "embedding", "index_select", "__getitem__"})
_GATHERS = frozenset({"gather", "take_along_dim", "index_select", "__getitem__", "embedding"})


class KeepGradients(ReplayChange):
    """The named module runs with gradients on, and so does the rest of the scope that had switched them off.

    The scope puts the old mode back when it ends, as it always does. A scope opened inside the module is ignored.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.depth = 0
        self._handles: list[RemovableHandle] = []

    @contextmanager
    def around(self) -> Iterator[None]:
        with _NeverOff(self):
            yield

    def prepared(self, replayable: Replayable) -> None:
        if self._handles:
            return
        module = replayable.model.get_submodule(self.name)
        self._handles = [
            module.register_forward_pre_hook(self._enter),
            module.register_forward_hook(self._leave, always_call=True),
        ]

    def undo(self, replayable: Replayable) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self.depth += 1
        torch.set_grad_enabled(True)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self.depth -= 1


class _NeverOff(TorchFunctionMode):
    def __init__(self, change: KeepGradients) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is set_grad_enabled and self.change.depth and args and not args[0]:
            return None
        return func(*args, **(kwargs or {}))


class PassChoice(ReplayChange):
    """What is looked up by the index of a best score keeps its value and takes the derivative of a soft choice."""

    def __init__(self, site: tuple[str, int], name: str, owners: frozenset[str]) -> None:
        self.site, self.name, self.owners = site, name, owners

    @contextmanager
    def around(self) -> Iterator[None]:
        with _Choosing(self):
            yield


class _Choosing(TorchFunctionMode):
    def __init__(self, change: PassChoice) -> None:
        super().__init__()
        self.change = change
        self.choices: list[tuple[torch.Tensor, torch.Tensor]] = []  # the index is kept: its memory must not be reused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == self.change.name:
            frame = current_stack(owners=self.change.owners).innermost
            if frame is not None and (frame.file, frame.line) == self.change.site:
                self._remember(out, args, kwargs)
        elif name in _LOOKUPS and self.choices:
            return self._passing(out, [*args, *kwargs.values()])
        return out

    def _remember(self, index: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Only a choice along the last dimension lines up with what is looked up by it."""
        scores = args[0] if args else kwargs.get("input")
        if not isinstance(scores, torch.Tensor):
            return
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if isinstance(dim, int) and dim in (-1, scores.dim() - 1):
            self.choices.append((index, -scores if self.change.name == "argmin" else scores))

    def _passing(self, out: Any, given: list[Any]) -> Any:
        for index, scores in self.choices:
            if not any(_same_memory(item, index) for item in given):
                continue
            soft = torch.softmax(scores, -1)
            table = next((t for t in given if isinstance(t, torch.Tensor) and t.is_floating_point()), None)
            if table is not None:
                fits = table.dim() == 2 and table.shape[0] == soft.shape[-1]
                soft = soft @ table.detach() if fits else soft  # the table learns from what was picked, as before
            if isinstance(out, torch.Tensor) and soft.shape == out.shape:
                hard = out if out.is_floating_point() else out.to(soft.dtype)
                return hard + (soft - soft.detach())
        return out


def _same_memory(item: Any, index: torch.Tensor) -> bool:
    same = isinstance(item, torch.Tensor) and item.dtype == index.dtype and item.numel() == index.numel()
    return same and item.data_ptr() == index.data_ptr()


class PassPick(ReplayChange):
    """What is gathered by the places of the best scores keeps its value, and its scores learn from it.

    It is multiplied by one plus the difference of a soft choice and the same number without a gradient.
    """

    def __init__(self, site: tuple[str, int], name: str, owners: frozenset[str]) -> None:
        self.site, self.name, self.owners = site, name, owners

    @contextmanager
    def around(self) -> Iterator[None]:
        with _Picking(self):
            yield


class _Picking(TorchFunctionMode):
    def __init__(self, change: PassPick) -> None:
        super().__init__()
        self.change = change
        self.picks: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in (self.change.name, f"arg{self.change.name}"):
            frame = current_stack(owners=self.change.owners).innermost
            if frame is not None and (frame.file, frame.line) == self.change.site:
                self._remember(name, out, args, kwargs)
        elif name in _GATHERS and self.picks and isinstance(out, torch.Tensor) and out.is_floating_point():
            return self._weighted(out, _tensors([*args, *kwargs.values()]))
        return out

    def _remember(self, name: str, out: Any, args: Any, kwargs: dict[str, Any]) -> None:
        places = next((t for t in _tensors([out]) if t.dtype is torch.int64), None)
        scores = args[0] if args else kwargs.get("input")
        after = args[2:] if name in ("topk", "kthvalue") else args[1:]
        dim = kwargs.get("dim", after[0] if after and type(after[0]) is int else -1)
        if places is None or not isinstance(scores, torch.Tensor) or not scores.requires_grad or not scores.dim():
            return
        whole = places.dim() == scores.dim()
        soft = torch.softmax(scores, dim).gather(dim, places if whole else places.unsqueeze(dim))
        self.picks.append((places, (soft if whole else soft.squeeze(dim)).contiguous()))

    def _weighted(self, out: torch.Tensor, given: list[torch.Tensor]) -> torch.Tensor:
        for places, soft in self.picks:
            for index in given:
                if index.dtype is not torch.int64 or not _in_memory_of(index, places) or not places.is_contiguous():
                    continue
                # The soft choice seen as the places were when they were used: with sides added, or expanded.
                start = index.storage_offset() - places.storage_offset()
                weight = soft.as_strided(index.shape, index.stride(), start)
                at = _place_in(weight.shape, out.shape)
                if at is not None:
                    weight = weight.reshape(*weight.shape, *(1,) * (out.dim() - weight.dim() - at))
                    return out * (1 + (weight - weight.detach()).to(out.dtype))
        return out


def _place_in(part: torch.Size, whole: torch.Size) -> int | None:
    """The first side of the whole from which on its sides are those of the part, or the part has one there."""
    starts = range(len(whole) - len(part) + 1)
    return next((d for d in starts if all(a in (1, b) for a, b in zip(part, whole[d:], strict=False))), None)


def _tensors(items: Any) -> list[torch.Tensor]:
    """The tensors in a list of arguments, and in the tuples and lists among them."""
    found: list[torch.Tensor] = []
    for item in items:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, tuple | list):
            found += _tensors(item)
    return found


def _in_memory_of(index: torch.Tensor, places: torch.Tensor) -> bool:
    return index.untyped_storage().data_ptr() == places.untyped_storage().data_ptr()
