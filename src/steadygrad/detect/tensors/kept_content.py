"""Whether tensors that are kept by reference still hold what they held, or a program has refilled their memory.

A write is counted in a tensor's version, but not one by numpy, through `.data` or in inference mode. So of tensors on
a CPU a few bytes are kept too; on a device that would make the host wait.
"""

from __future__ import annotations

import ctypes
import operator
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .nested_tensors import tensors_in

_PLACES, _BYTES, _SAMPLED = 8, 8, 4
"""Bytes are kept of so many places of a tensor, so many of each, and of so many tensors at the most."""
_read, _version = ctypes.string_at, operator.attrgetter("_version")
_WORDS = ctypes.c_uint64 * (sys.maxsize // 8)
"""Memory as numbers of eight bytes: several of them are read by one call."""


class ContentMarks:
    """What differs once someone has written into some tensors. Taking it never syncs, and costs a few microseconds."""

    __slots__ = ("samples", "versions")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.versions = _versions_of(tensors)
        self.samples: dict[int, Sequence[int]] = {}
        for place, each in enumerate(tensors[:_SAMPLED]):
            if _is_sampled(each, place):
                self.samples[place] = _sample(each)

    def __eq__(self, later: object) -> bool:
        """Compares the values that both have: a tensor that numpy was given since is sampled from then on only."""
        if not isinstance(later, ContentMarks):
            return NotImplemented
        if self.versions != later.versions:
            return False
        if self.samples == later.samples:
            return True
        both = self.samples.keys() & later.samples.keys()
        return all(self.samples[place] == later.samples[place] for place in both)


def marks_of(batch: Any) -> ContentMarks:
    """The marks of all tensors of a batch."""
    return ContentMarks(tensors_in(batch))


class KeptContent:
    """The tensors of one micro-batch as they were when it was fed."""

    __slots__ = ("__weakref__", "_marks", "tensors")

    def __init__(self, tensors: Sequence[Tensor], marks: ContentMarks | None = None) -> None:
        """`marks` are those of these tensors, if they were just taken."""
        self.tensors, self._marks = tensors, marks or ContentMarks(tensors)

    def differs_from(self, marks: ContentMarks) -> bool:
        """Whether someone has written into them until these marks of them were taken, as far as the host can see."""
        return self._marks != marks

    @property
    def written(self) -> bool:
        """The same until now."""
        return self.differs_from(ContentMarks(self.tensors))

    @property
    def counted_writes(self) -> bool:
        """The same by the versions alone: for every step's path."""
        return self._marks.versions != _versions_of(self.tensors)

    def shares_memory(self, later: KeptContent) -> bool:
        """Whether a tensor of a device begins where one of a later micro-batch does: it may have been refilled."""
        mine = {address_of(each) for each in self.tensors if each.device.type != "cpu"}
        return not mine.isdisjoint(map(address_of, later.tensors))


class RefilledMemory:
    """Sees when the memory of a batch that is still kept comes again with other content: the program refills it."""

    def __init__(self) -> None:
        self._kept: weakref.WeakValueDictionary[int, KeptContent] = weakref.WeakValueDictionary()
        self._looked: tuple[KeptContent, ContentMarks] | None = None
        """A content that was just looked at, and the marks of its tensors now."""
        self.seen = False

    def look(self, tensors: Sequence[Tensor]) -> bool:
        """Before these are kept: whether such memory was ever seen to be refilled."""
        self._looked = None
        if not self.seen:
            for each in tensors:
                content = self._kept.get(address_of(each))
                if content is None or (self._looked is not None and content is self._looked[0]):
                    continue
                self._looked = content, (marks := ContentMarks(content.tensors))
                if content.differs_from(marks):
                    self.seen = True
                    break
        return self.seen

    def keep(self, tensors: Sequence[Tensor]) -> KeptContent:
        """These are fed now. What `look` has read of them a moment ago is not read again."""
        looked, self._looked = self._looked, None
        same = looked is not None and _identical(looked[0].tensors, tensors)
        content = KeptContent(tensors, looked[1] if looked is not None and same else None)
        for each in tensors:
            self._kept[address_of(each)] = content
        return content


def address_of(tensor: Tensor) -> int:
    """Where its values begin; of a tensor without memory, which object it is."""
    try:
        return tensor.data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _identical(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _versions_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    try:
        return tuple(map(_version, tensors))
    except RuntimeError:  # of a tensor made in inference mode writes are not counted
        return tuple(0 if each.is_inference() else each._version for each in tensors)


def _is_sampled(tensor: Tensor, place: int) -> bool:
    """The first of a batch, and those whose memory numpy or another library can write to."""
    if type(tensor) not in _PLAIN or not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.numel():
        return False
    return not place or not tensor.untyped_storage().resizable()


def _is_dense(tensor: Tensor) -> bool:
    """Whether its values fill a piece of memory, in whatever order of the dimensions."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span + 1 == tensor.numel()


def _sample(tensor: Tensor) -> Sequence[int]:
    """A few bytes from all over its memory, or along its longest side where it has gaps; none without memory."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a wrapper of torch.func, or of a tensor that is only described
        return b""
    if not address:
        return b""
    value = tensor.element_size()
    size = tensor.numel() * value
    if not (tensor.is_contiguous() or _is_dense(tensor)):
        length, apart = max(zip(tensor.shape, tensor.stride(), strict=True))
        steps = min(_PLACES, length) - 1
        places = {(length - 1) * place // steps if steps else 0 for place in range(steps + 1)}
        return b"".join([_read(address + place * apart * value, value) for place in sorted(places)])
    if size <= _PLACES * _BYTES:
        return _read(address, size)
    last = size // _BYTES - 1
    apart = last // (_PLACES - 2)  # the last place is the end, which need not be a multiple of eight bytes away
    words: list[int] = _WORDS.from_address(address)[0 : last + 1 : apart]
    words.append(_WORDS.from_address(address + size - _BYTES)[0])
    return words


_PLAIN = (Tensor, torch.nn.Parameter)
