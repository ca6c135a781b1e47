"""Values that leave the graph at one line brought back into it, and comparisons that pass a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...detect.tensors.foreign_objects import getattr, isinstance
from ..replay.replay_step import ReplayChange
from ..trace.tracer import COPIES, EXITS, given_to, reads_data
from ..trace.user_frames import current_stack

_MAKERS = frozenset({"tensor", "as_tensor", "asarray"})
_CASTS = frozenset(
    {
        "float",
        "to",
        "double",
        "half",
        "bfloat16",
        "type",
        "type_as",
        "mul",
        "__mul__",
        "__rmul__",
        "div",
        "__truediv__",
        "true_divide",
    }
)
_TO_INTEGERS = frozenset({"int", "long", "short", "char", "byte", "to", "type"})


class Rejoin(ReplayChange):
    """What is taken out of the graph at this line (`.data`, `.numpy()`, `.tolist()`) keeps its gradient.

    The same memory, or a tensor made of the very same numbers, stands for the tensor that was taken.
    """

    def __init__(self, site: tuple[str, int], owners: frozenset[str]) -> None:
        self.site, self.owners = site, owners

    @contextmanager
    def around(self) -> Iterator[None]:
        mode, from_numpy = _Rejoining(self), torch.from_numpy

        def rejoined(array: Any) -> torch.Tensor:
            made: torch.Tensor = mode.same_numbers(from_numpy(array))
            return made

        # No function mode sees this one.
        torch.from_numpy = rejoined  # type: ignore[assignment]
        try:
            with mode:
                yield
        finally:
            torch.from_numpy = from_numpy


class _Rejoining(TorchFunctionMode):
    def __init__(self, change: Rejoin) -> None:
        super().__init__()
        self.change = change
        self.taken: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        leaves = name in EXITS or name == "detach" or reads_data(func)
        if leaves and args and isinstance(args[0], torch.Tensor):
            if args[0].requires_grad and _at(self.change):
                self.taken.append(args[0])
                if name == "item" or (name == "tolist" and not args[0].dim()):
                    return args[0]  # a tensor of one number does for the number in nearly all that can be done with it
            return func(*args, **kwargs)
        if name in COPIES and _at(self.change):
            self.taken += [item for item in given_to(args) if item.requires_grad]
            if args and isinstance(args[-1], list | tuple) and len(given_to(args)) == len(args[-1]) > 0:
                self.taken.append(torch.stack(list(args[-1])))
        # What is written into a buffer or a bank stays what was taken: a graph does not belong there.
        writes = name.endswith("_") and not name.endswith("__")
        if self.taken and not writes and name not in ("__get__", "__set__", "backward", *COPIES):
            args = tuple(self._back(item) for item in args)
        out = func(*args, **kwargs)
        return self.same_numbers(out) if (name in _MAKERS or name in COPIES) and self.taken else out

    def _back(self, item: Any) -> Any:
        if type(item) in (list, tuple):
            return type(item)(self._back(part) for part in item)
        if isinstance(item, torch.Tensor) and not item.requires_grad and item.is_floating_point():
            for tensor in self.taken:
                if tensor.data_ptr() == item.data_ptr() and tensor.shape == item.shape and tensor.dtype == item.dtype:
                    return tensor
        return item

    def same_numbers(self, out: Any) -> Any:
        """The tensor that was taken, for one that holds its very numbers."""
        alike = [t for t in self.taken if isinstance(out, torch.Tensor) and out.shape == t.shape]
        for tensor in alike:
            if torch.equal(out, tensor.to(out.dtype)):
                return tensor.to(out.dtype)
        if alike and out.is_floating_point():
            # Changed on the way, outside of torch: what it was made of is known, and how steeply is not.
            return out.detach() + (alike[-1] - alike[-1].detach()).to(out.dtype)
        return out


class PassComparison(ReplayChange):
    """What a comparison at this line decides keeps its value and takes the derivative of what was compared.

    So does what a conversion to integers, or a place in an order, leaves of a number.
    """

    def __init__(self, site: tuple[str, int], name: str, owners: frozenset[str]) -> None:
        self.site, self.name, self.owners = site, name, owners

    @contextmanager
    def around(self) -> Iterator[None]:
        with _Comparing(self):
            yield


class _Comparing(TorchFunctionMode):
    def __init__(self, change: PassComparison) -> None:
        super().__init__()
        self.change = change
        self.decided: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if self._decides(name, args, out) and _at(self.change):
            sign = -1.0 if self.change.name in ("lt", "le") else 1.0
            self.decided.append((out, sign * args[0]))
        elif name in _CASTS and isinstance(out, torch.Tensor) and out.is_floating_point():
            for choice, score in self.decided:
                if any(item is choice for item in args) and out.shape == score.shape:
                    return out + (score - score.detach()).to(out.dtype)
        elif name == "where" and len(args) == 3 and isinstance(out, torch.Tensor):
            for choice, score in self.decided:
                if args[0] is choice:
                    soft = torch.sigmoid(score)
                    return out + (soft - soft.detach()) * _difference(args[1], args[2])
        return out

    def _decides(self, name: str, args: Any, out: Any) -> bool:
        if not (args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point()):
            return False
        rounded = isinstance(out, torch.Tensor) and not out.is_floating_point()
        return (self.change.name == "to_copy" and name in _TO_INTEGERS and rounded) or (
            name.strip("_") == self.change.name
        )


def _difference(chosen: Any, other: Any) -> Any:
    parts = [part.detach() if isinstance(part, torch.Tensor) else part for part in (chosen, other)]
    return parts[0] - parts[1]


def _at(change: Rejoin | PassComparison) -> bool:
    frame = current_stack(owners=change.owners).innermost
    return frame is not None and (frame.file, frame.line) == change.site
