"""Which tensors may be read: the one decision that every sampled check and every part of a diagnosis asks for.

Reading a tensor without memory ends the process, and reading one that is sparse, nested, quantised, wrapped
by a function transform or of an unknown class raises out of the user's own forward or backward. So each is named with
the reason and left alone. All private torch interfaces for telling tensors apart are in this file.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from .foreign_objects import isinstance
from .torch_private import has_storage, is_functional, is_functorch_wrapped

_PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_READABLE = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.complex128,
        torch.complex64,
        torch.complex32,
        *(
            getattr(torch, name)
            for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
            if hasattr(torch, name)
        ),
    }
)
_LAYOUTS = {
    torch.sparse_coo: "sparse tensor",
    torch.sparse_csr: "sparse CSR tensor",
    torch.sparse_csc: "sparse CSC tensor",
    torch.sparse_bsr: "sparse BSR tensor",
    torch.sparse_bsc: "sparse BSC tensor",
}


def why_not_read(tensor: Any) -> str | None:
    """Why this tensor must not be touched, as a short noun; None for an ordinary dense tensor with memory."""
    if not issubclass(type(tensor), Tensor):
        return "not a tensor"
    try:
        kind = type(tensor)
        if is_functorch_wrapped(tensor):
            return "tensor inside a function transform (torch.func)"
        if is_functional(tensor):
            return "functionalised tensor"
        if kind not in _PLAIN and not _adds_nothing(kind):
            return f"tensor of class {kind.__name__}"
        if tensor.is_nested:
            return "nested tensor"
        if tensor.layout is not torch.strided:
            return _LAYOUTS.get(tensor.layout, f"tensor of layout {str(tensor.layout).removeprefix('torch.')}")
        if tensor.device.type == "meta":
            return "meta tensor"
        if tensor.is_quantized:
            return "quantised tensor"
        if tensor._is_zerotensor():
            return "zero tensor"
        if not has_storage(tensor):
            return "tensor without storage"
        if tensor.numel() and tensor.untyped_storage().nbytes() == 0:
            return "tensor whose memory was freed"
        return None
    except Exception as error:  # a tensor that cannot even be asked what it is
        return f"tensor that cannot be asked what it is ({type(error).__name__})"


def _adds_nothing(kind: type) -> bool:
    """Whether a subclass is a tensor like any other: it takes over neither functions nor ops, and has its data."""
    if hasattr(kind, "materialize"):  # a lazy parameter has no data yet
        return False
    functions = {getattr(plain, "__torch_function__", None) for plain in _PLAIN}
    ops = {getattr(plain, "__torch_dispatch__", None) for plain in _PLAIN}
    return (
        getattr(kind, "__torch_function__", None) in functions
        and getattr(kind, "__torch_dispatch__", None) in ops
        and type(kind) in {type(plain) for plain in _PLAIN}
    )


def only_shape(tensor: Tensor) -> bool:
    """Whether this stands for a tensor that is never computed: on the meta device, or fake."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return tensor.device.type == "meta" or (fake is not None and isinstance(tensor, fake.FakeTensor))


def describable(tensor: Any) -> bool:
    """Whether shape, storage and values of this object can be looked at: it is an ordinary dense tensor with memory."""
    return why_not_read(tensor) is None


def has_values(tensor: Any) -> bool:
    """Whether this is a describable tensor of real or complex numbers, with at least one entry."""
    return describable(tensor) and holds_numbers(tensor)


def holds_numbers(tensor: Tensor) -> bool:
    """Whether a tensor known to be describable is of real or complex numbers, with at least one entry."""
    return tensor.dtype in _READABLE and tensor.numel() > 0


def values_of(tensor: Tensor) -> Tensor | None:
    """The numbers of a dense tensor, or those that a sparse one stores; None where they cannot be read."""
    if tensor.layout is torch.sparse_coo and type(tensor) in _PLAIN:
        tensor = tensor.detach()
        tensor = tensor.values() if tensor.is_coalesced() else tensor.coalesce().values()
    elif tensor.layout in _LAYOUTS and type(tensor) in _PLAIN:
        tensor = tensor.detach().values()
    return tensor if describable(tensor) else None


def finite_as_far_as_read(tensor: Tensor) -> bool:
    """Whether a tensor of any kind has no NaN or Inf; True where it cannot be read. Reads the device."""
    why = why_not_read(tensor)
    try:
        values = tensor.detach().values() if tensor.is_nested else values_of(tensor)
        if values is None and why == f"tensor of class {type(tensor).__name__}" and not only_shape(tensor):
            values = tensor.detach()
        if values is None:
            return True
        return bool(torch.isfinite(values.float() if values.element_size() == 1 else values).all())
    except Exception:  # its class has no such function
        return True


def stored_values(item: Any) -> Any:
    """The memory in which a sparse COO tensor keeps its numbers, several for one place maybe; any other item as it
    is."""
    return item.detach()._values() if why_not_read(item) == _LAYOUTS[torch.sparse_coo] else item


def can_be_copied(tensor: Tensor) -> bool:
    """Whether a tensor can be copied and its copy be written back. With some kinds torch raises there, or ends the
    process."""
    why = why_not_read(tensor)
    if why is None or type(tensor) not in _PLAIN:  # a class of its own says itself what it can
        return True
    if tensor.is_quantized:
        return tensor.qscheme() in (torch.per_tensor_affine, torch.per_channel_affine)
    return why in _LAYOUTS.values()


def has_plain_memory(tensor: Tensor) -> bool:
    """Whether its numbers lie in memory one by one. Reading the bytes of others raises, or ends the process."""
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def write_values(tensor: Tensor, values: Tensor) -> None:
    """Copy values into a tensor of their shape. A number that an expanded one shows several times is written once."""
    if has_plain_memory(tensor) and not tensor.is_contiguous():
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if stride == 0 and size > 1:
                tensor, values = tensor.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    tensor.copy_(values)


def once(tensor: Tensor) -> tuple[Tensor, int]:
    """Every number of a describable tensor once: an expanded dimension is taken at its first index.

    The second value says how often each number occurs in the tensor as it is. Reads nothing.
    """
    times = 1
    if tensor.is_contiguous():
        return tensor, times
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor, times = tensor.narrow(dim, 0, 1), times * size
    return tensor, times
