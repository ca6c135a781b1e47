"""The tensors that a pickle of torch's describes: which storage each lies in, where, and under which name.

Tensors may share a storage, overlap in it or, by a stride of zero, claim far more values than there are. So what is
scanned is the memory and not the view: overlapping tensors are merged, and every byte is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..file_source import Unreadable
from .dangerous_names import KNOWN
from .float_formats import bytes_a_value
from .pickle_reader import Called, Persistent, Pickle, PickledName, parts_of
from .tensor_span import MAX_BYTES, MAX_NAME, MAX_TENSORS, Span, check_shape

STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64", "QUInt8Storage": "quint8", "QInt8Storage": "qint8", "QInt32Storage": "qint32",
    "UntypedStorage": "uint8",
}  # fmt: skip
DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32", "short": "int16",
    "cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32",
}  # fmt: skip
MAX_DEPTH = 1000
_PLAIN = (str, int, float, bytes, type(None), PickledName)
# Parts of the path to a tensor that name torch's own drawers and tell no one anything.
_DRAWERS = {"_modules", "_parameters", "_buffers", "_local_tensor", "_tensor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """A tensor: its storage's key, and the stretch of bytes in it that its values lie in."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    key: str
    start: int
    num_bytes: int
    in_order: bool = True
    storage_width: int = 1
    """Bytes in which the storage counts its length; not the tensor's own where the storage has no type."""
    storage_bytes: int
    """How many bytes the storage is said to have."""


def views_in(path: Path, pickle: Pickle, root: str = "") -> list[TensorView]:
    """Every tensor a pickle describes, with the name its place gives it. Each object is visited once."""
    found: list[TensorView] = []
    seen: set[int] = set()
    waiting: list[tuple[str, Iterator[tuple[str, Any]]]] = [("", iter([(root, pickle.value)]))]
    while waiting:
        above, parts = waiting[-1]
        part, value = next(parts, (None, None))
        if part is None:
            waiting.pop()
            continue
        if isinstance(value, _PLAIN):
            continue
        name = _joined(above, part)
        view = _view(path, name, value)
        if view is not None:
            found.append(view)
            if len(found) > MAX_TENSORS:
                raise Unreadable(f"{path} describes more than {MAX_TENSORS:,} tensors.")
        elif id(value) not in seen:
            seen.add(id(value))
            waiting.append((name, parts_of(value)))
            if len(waiting) > MAX_DEPTH:
                raise Unreadable(f"{path}: its pickle nests more than {MAX_DEPTH:,} levels: no checkpoint's does.")
    return found


def _joined(name: str, part: str) -> str:
    if not part or part in _DRAWERS or len(name) >= MAX_NAME:
        return name
    return f"{name}.{part}"[:MAX_NAME] if name else part[:MAX_NAME]


def _view(path: Path, name: str, value: Any) -> TensorView | None:
    """The tensor that a call of one of torch's functions would make; None for anything else."""
    if isinstance(value, Persistent):  # a storage with no tensor over it
        return _whole_storage(path, name, value)
    value = _without_its_class(value)
    if not isinstance(value, Called) or not value.name.startswith("torch._utils._rebuild_"):
        return None
    function = value.name.removeprefix("torch._utils.")
    if function not in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"):
        return None  # a wrapper: what it wraps is among its arguments
    try:
        storage, offset, shape, stride = value.arguments[:4]
        dtype, key, num_bytes = _storage(storage)
        storage_width = bytes_a_value(dtype) or 1
        if function == "_rebuild_tensor_v3":
            dtype = _dtype(value.arguments[6])
        shape, stride = _numbers(shape), _numbers(stride)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise Unreadable(f"{path}: the description of tensor {name!r} is damaged.") from error
    check_shape(path, name, shape)
    width = bytes_a_value(dtype)
    if width is None:
        raise Unreadable(f"{path}: tensor {name!r} has the type {dtype[:40]!r}, which is not known.")
    if (
        len(stride) != len(shape)
        or type(offset) is not int
        or not 0 <= min((offset, *stride)) <= max((offset, *stride)) < MAX_BYTES
    ):
        raise Unreadable(f"{path}: the description of tensor {name!r} is damaged.")
    reach = 0 if 0 in shape else 1 + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    if reach and (offset + reach) * width > num_bytes:
        raise Unreadable(f"{path}: tensor {name!r} is said to reach beyond its storage of {num_bytes:,} bytes.")
    return TensorView(
        name=name or "(the tensor)",
        dtype=dtype,
        shape=shape,
        key=key,
        start=offset * width,
        num_bytes=reach * width,
        in_order=_contiguous(shape, stride),
        storage_width=storage_width,
        storage_bytes=num_bytes,
    )


def _without_its_class(value: Any) -> Any:
    """Of a tensor of a class of someone's own, the plain tensor inside: what would be called, and with what."""
    if isinstance(value, Called) and value.name == "torch._tensor._rebuild_from_type_v2" and len(value.arguments) == 4:
        function, _, arguments, _ = value.arguments
        if isinstance(function, PickledName) and isinstance(arguments, tuple):
            return Called(function, arguments)
    return value


def _whole_storage(path: Path, name: str, reference: Persistent) -> TensorView | None:
    try:
        dtype, key, num_bytes = _storage(reference)
    except (ValueError, TypeError, IndexError, AttributeError):
        return None  # something else that is kept outside, such as a module's source
    width = bytes_a_value(dtype) or 1
    shape = (num_bytes // width,)
    return TensorView(
        name=name or "(the storage)", dtype=dtype, shape=shape, key=key, start=0, num_bytes=num_bytes,
        storage_width=width, storage_bytes=num_bytes,
    )  # fmt: skip


def _storage(reference: Any) -> tuple[str, str, int]:
    """(type, key, bytes) of a storage."""
    word, kind, key, _, length, *_ = reference.key
    word = word.decode() if isinstance(word, bytes) else word
    if word != "storage" or not isinstance(kind, PickledName) or type(length) is not int or not 0 <= length < MAX_BYTES:
        raise ValueError
    if not isinstance(key, str | bytes) and type(key) is not int:
        raise TypeError
    dtype = STORAGES[kind.name] if kind.name in STORAGES else _dtype(kind)
    width = bytes_a_value(dtype)
    if width is None:
        raise ValueError
    return dtype, str(key), length * width


def _dtype(name: Any) -> str:
    if not isinstance(name, PickledName) or name.module != "torch":
        raise TypeError
    return DTYPES.get(name.name, name.name)


def _numbers(value: Any) -> tuple[int, ...]:
    if isinstance(value, Called) and value.name == "torch.Size":
        (value,) = value.arguments
    if not isinstance(value, tuple | list) or any(type(number) is not int for number in value):
        raise TypeError
    return tuple(value)


def _contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for length, step in zip(reversed(shape), reversed(stride), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True


def merged(views: list[TensorView]) -> Iterator[tuple[TensorView, int]]:
    """The views with those that share memory made one, named after the first; and how many were left out for it."""
    by_key: dict[str, list[TensorView]] = {}
    for view in views:
        by_key.setdefault(view.key, []).append(view)
    for family in by_key.values():
        family.sort(key=lambda view: (view.start, -view.num_bytes))  # stable: of equals the first in the file leads
        lead, also = family[0], 0
        for view in family[1:]:
            end = lead.start + lead.num_bytes
            if view.start >= end or not view.num_bytes:
                yield lead, also
                lead, also = view, 0
                continue
            also += 1
            if view.start + view.num_bytes > end:
                lead = replace(lead, num_bytes=view.start + view.num_bytes - lead.start, in_order=False)
        yield lead, also


def spans_of(path: Path, views: list[TensorView], places: dict[str, tuple[int, int]]) -> tuple[Span, ...]:
    """The views as stretches of the file, given where each storage begins and how many bytes it has."""
    order = {id(view): number for number, view in enumerate(views)}
    spans: list[tuple[int, Span]] = []
    for view in views:
        place = places.get(view.key)
        if place is None:
            raise Unreadable(f"{path}: the values of tensor {view.name!r} are missing: the file is truncated.")
        if not 0 <= place[1] - view.storage_bytes < view.storage_width:
            raise Unreadable(
                f"{path}: the storage of tensor {view.name!r} is said to have {view.storage_bytes:,} bytes and "
                f"{place[1]:,} are there: the file is truncated or lies."
            )
    for view, also in merged(views):
        start, _ = places[view.key]
        # Views of several types over one memory may end in the middle of a value of the first's.
        whole = view.num_bytes - view.num_bytes % (bytes_a_value(view.dtype) or 1)
        span = Span(
            name=view.name, dtype=view.dtype, shape=view.shape, offset=start + view.start, num_bytes=whole,
            also=also, in_order=view.in_order,
        )  # fmt: skip
        spans.append((order.get(id(view), len(views)), span))
    return tuple(span for _, span in sorted(spans, key=lambda entry: entry[0]))


def strangers(pickle: Pickle) -> list[str]:
    """The names in a pickle that a plain checkpoint does not hold; loading the file would import them."""
    return sorted(str(name) for name in pickle.names if name.module.partition(".")[0] not in KNOWN)
