"""The origin's op with its very inputs and outputs, taken in a second replay, and the numbers read off them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.readable_tensors import describable, has_values, once
from ...detect.tensors.torch_private import tree_flatten, tree_map
from ...records import TensorDigest
from ..isolation.device_memory import copied, copied_to_host
from ..trace.trace_log import OpRecord
from ..trace.tracer import Watcher

MAX_ELEMENTS = 1 << 24
MAX_ELEMENTS_NEARBY = 1 << 20
"""Past this a tensor of the specimen is digested and not copied: the diagnosis must fit beside the training step."""
ROWS = 64
"""Of larger tensors so many rows with bad entries are copied, and as many others, where an op keeps rows apart."""
PIECE = 1 << 22
"""Entries that are digested at a time: what the digest needs beside the tensor itself."""


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """An 8-bit float as float32, for hardly any function takes it as it is; every other tensor unchanged."""
    return tensor.to(torch.float32) if tensor.dtype.itemsize == 1 and has_values(tensor) else tensor


def digest(tensor: torch.Tensor, name: str = "") -> TensorDigest:
    """A describable tensor in a line, read piece by piece. Syncs with the host; magnitudes are over finite entries."""
    kind, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if not has_values(tensor) or tensor.is_complex():
        return TensorDigest(name=name, shape=shape, dtype=kind, num_zero=_num_zero(tensor))
    few, times = once(tensor.detach())
    nan = inf = zero = 0
    largest, smallest = 0.0, float("inf")
    for piece in _pieces(few):
        part = widened(piece)
        finite = torch.isfinite(part)
        size = part.abs().to(torch.float32 if part.dtype.itemsize < 4 else part.dtype)
        largest = max(largest, float(torch.where(finite, size, 0.0).max()))
        smallest = min(smallest, float(torch.where(finite, size, float("inf")).min()))
        nan += int(torch.isnan(part).sum())
        inf += int(torch.isinf(part).sum())
        zero += int((part == 0).sum())
    return TensorDigest(
        name=name,
        shape=shape,
        dtype=kind,
        absmax=largest,
        absmin=smallest if smallest != float("inf") else 0.0,
        num_nan=nan * times,
        num_inf=inf * times,
        num_zero=zero * times,
    )


def _num_zero(tensor: torch.Tensor) -> int:
    if not tensor.numel() or tensor.is_floating_point() or tensor.is_complex():
        return 0
    few, times = once(tensor)
    return times * sum(int((piece == 0).sum()) for piece in _pieces(few))


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor in parts of at most PIECE entries, without copying it."""
    if tensor.numel() <= PIECE:
        yield tensor
        return
    dim = max(range(tensor.dim()), key=lambda d: tensor.shape[d])
    for half in tensor.tensor_split(2, dim):
        yield from _pieces(half)


@dataclass(slots=True)
class CapturedOp:
    """One op caught in the act. `args` hold copies (None where a tensor was too large to copy)."""

    record: OpRecord | None = None
    func: Any = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorDigest, ...] = ()
    outputs: tuple[TensorDigest, ...] = ()
    output_tensors: tuple[torch.Tensor, ...] = ()
    light: bool = False
    on_host: bool = False
    """Whether the copies are to lie on the host, wherever the tensors lay."""
    bad_leading: tuple[bool, ...] = ()
    """For each index of dimension 0 of the first bad output: does it hold a bad value?"""
    _before: list[torch.Tensor] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        return _described((self.args, dict(self.kwargs)))

    @property
    def most(self) -> int:
        """A tensor with more entries is not copied."""
        return MAX_ELEMENTS_NEARBY if self.light else MAX_ELEMENTS

    def bytes_for(self, record: OpRecord) -> int:
        """What the copies take of an op that was seen before."""
        sizes = ((math.prod(touch.shape), touch.dtype) for touch in (*record.reads, *record.writes))
        return sum(size * getattr(torch, kind).itemsize for size, kind in sizes if size <= self.most)

    def watcher(self) -> Watcher:
        """Called by the tracer before the op (out is None) and after it. A light one copies little, reads nothing."""
        limit = self.most
        keep = copied_to_host if self.on_host else copied

        def copy(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            small = item.numel() <= limit
            return widened(keep(item)) if small and describable(item) else None

        def watch(record: OpRecord, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
            if args and type(args[0]) in (list, tuple) and ("foreach" in str(func) or "fused" in str(func)):
                self._watch_list(record, args, out)
            elif out is None and self.record is not record:
                self.record, self.func = record, func
                self.args, self.kwargs = tree_map(copy, tuple(args)), tree_map(copy, dict(kwargs))
                if self.light:
                    return
                self.inputs = tuple(digest(tensor) for tensor in _described((args, kwargs)))
            else:
                # An op that returns nothing has written into its arguments.
                outputs = _described(out if out is not None else (args, kwargs))
                self.output_tensors = tuple(item for item in map(copy, outputs) if item is not None)
                if self.light:
                    return
                self.outputs = tuple(digest(tensor) for tensor in outputs)
                self.bad_leading = _bad_leading(outputs)
                if any(tensor.numel() > limit for tensor in (*outputs, *_described((args, kwargs)))):
                    self._keep_rows(record.op, func, args, kwargs, outputs, copy)

        return watch

    def _keep_rows(self, op: str, func: Any, args: Any, kwargs: Any, outputs: list[torch.Tensor], copy: Any) -> None:
        """Of tensors too large to copy, the rows that came out bad and a few others, in arguments and outputs alike."""
        given = _described((args, kwargs))
        out = outputs[0] if outputs else None
        if out is None or not out.dim() or not self.bad_leading:
            return
        if {_memory(tensor) for tensor in outputs} & {_memory(tensor) for tensor in given}:
            return  # written over what it read
        flat = (torch.Tag.pointwise in getattr(func, "tags", ())) or (op in _SOFTMAX and _last(args, out))
        lead = out.shape[:-1] if flat and out.dim() > 1 else out.shape[:1]
        num = min(ROWS, self.most * math.prod(lead) // (2 * out.numel()))
        if not num or not (flat or op in _BY_ROWS or op in _BY_BATCH):
            return
        rows = _some_rows(out, lead, num)
        taken = {id(args[_BY_ROWS[op]])} if op in _BY_ROWS else {id(tensor) for tensor in given}

        def few(item: Any) -> Any:
            if isinstance(item, torch.Tensor) and describable(item) and (id(item) in taken or item is out):
                item = _at_rows(item.detach(), rows, out.dim()) if flat else item.detach()[rows[0]]
            return copy(item)

        self.args, self.kwargs = tree_map(few, tuple(args)), tree_map(few, dict(kwargs))
        if flat and op in _SOFTMAX:
            self.args = (self.args[0], -1, *self.args[2:])
        self.output_tensors = (few(out),)

    def digest_copies(self) -> None:
        """What a light specimen left for later: its copies in lines. Syncs with the host."""
        if not self.inputs and not self.outputs:
            self.inputs = tuple(digest(tensor) for tensor in self.tensors)
            self.outputs = tuple(digest(tensor) for tensor in self.output_tensors)
            self.bad_leading = _bad_leading(list(self.output_tensors))

    def _watch_list(self, record: OpRecord, args: Sequence[Any], out: Any) -> None:
        """An op over lists of tensors, as the one op among them that went wrong. Called before it and after it.

        Only what the op may write over is copied beforehand, and only if that is little.
        """
        if not all(map(describable, args[0])):
            return
        if self.record is None:
            self.record = record
            small = sum(tensor.numel() for tensor in args[0]) <= MAX_ELEMENTS_NEARBY
            self._before = [tensor.detach().clone() for tensor in args[0]] if small else None
            return
        made = list(out) if type(out) in (list, tuple) and out else list(args[0])
        sizes = torch.stack([size.to(torch.float64) for size in torch._foreach_norm(made, float("inf"))])
        bad = (~torch.isfinite(sizes)).nonzero().flatten().tolist()
        at = bad[0] if bad else 0
        picked = [arg[at] if type(arg) in (list, tuple) and len(arg) == len(made) else arg for arg in args]
        if self._before is not None:
            picked[0] = self._before[at]
        self.args = tuple(item.detach().clone() if isinstance(item, torch.Tensor) else item for item in picked)
        self.inputs = tuple(digest(item) for item in self.args if isinstance(item, torch.Tensor))
        self.outputs, self.output_tensors = (digest(made[at]),), (widened(made[at].detach().clone()),)
        self._before = None


_SOFTMAX = frozenset({"softmax", "log_softmax", "safe_softmax"})
_BY_ROWS = {"mm": 0, "addmm": 1, "convolution": 0, "native_layer_norm": 0}
"""Ops that give a row for each row of the argument at this place."""
_BY_BATCH = frozenset({"bmm"})
"""Ops that give an entry of dimension 0 for those of all their arguments."""


def _last(args: Sequence[Any], out: torch.Tensor) -> bool:
    """Whether a softmax runs over the last dimension."""
    return len(args) > 1 and args[1] in (-1, out.dim() - 1)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if has_values(tensor) else id(tensor)


def _some_rows(out: torch.Tensor, lead: torch.Size, num: int) -> tuple[torch.Tensor, ...]:
    """Where bad rows stand, and as many good ones: an index for each of the leading dimensions."""
    bad = []
    for part in out.detach().split(max(1, PIECE * len(out) // out.numel())):  # type: ignore[no-untyped-call]
        bad.append((~torch.isfinite(widened(part))).reshape(math.prod((len(part), *lead[1:])), -1).any(1))
    is_bad = torch.cat(bad)
    chosen = torch.cat([is_bad.nonzero().flatten()[:num], (~is_bad).nonzero().flatten()[:num]])
    return torch.unravel_index(chosen, lead)


def _at_rows(tensor: torch.Tensor, rows: tuple[torch.Tensor, ...], dims: int) -> torch.Tensor:
    """The same rows of a tensor that is broadcast to a shape of so many dimensions."""
    own = min(len(rows), tensor.dim() - (dims - len(rows)))
    if own <= 0:
        return tensor
    index = [row if size > 1 else row * 0 for row, size in zip(rows[len(rows) - own :], tensor.shape, strict=False)]
    return tensor[tuple(index)]


def _described(tree: Any) -> list[torch.Tensor]:
    """The tensors among these arguments that can be looked at."""
    return [item for item in tree_flatten(tree)[0] if isinstance(item, torch.Tensor) and describable(item)]


def _bad_leading(outputs: list[torch.Tensor]) -> tuple[bool, ...]:
    for out in map(widened, outputs):
        if has_values(out) and out.is_floating_point() and out.dim():
            bad = [bool((~torch.isfinite(row)).any()) for row in out] if out.shape[0] <= 256 else []
            if not bad:
                some = out.split(max(1, PIECE // max(1, out[0].numel())))  # type: ignore[no-untyped-call]
                bad = [each for rows in some for each in (~torch.isfinite(rows)).reshape(len(rows), -1).any(1).tolist()]
            if any(bad):
                return tuple(bad)
    return ()
