"""A sequence that does not keep what is in it: whoever trains holds the optimizers, and frees them by letting go."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class WeakSequence(Sequence[T]):
    """Objects that are held elsewhere. Those that are gone are left out."""

    def __init__(self, objects: Sequence[T]) -> None:
        self._references = [weakref.ref(each) for each in objects]

    def __iter__(self) -> Iterator[T]:
        return iter([found for reference in self._references if (found := reference()) is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        return list(self)[place]
