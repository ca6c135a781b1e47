"""Index bounds checked before a kernel is launched, for steps that are run with other rows or values than they had.

On an accelerator an index outside of its tensor is no exception: it is an assertion on the device that makes the
context unusable and ends the training process. So while a changed step runs, every operation that takes indices, class
numbers, lengths or probabilities is checked on the host first and refused with an ordinary exception. An operation
that is not known to be safe and takes integers is refused too. Works on every device and needs no memory; reads the
device once for each checked tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ...detect.tensors.readable_tensors import why_not_read
from ...detect.tensors.torch_private import TorchDispatchMode
from ..trace.tracer import op_name

Named = Mapping[str, Any]
Check = Callable[[Named], None]


class OutOfBounds(IndexError):
    """An operation was about to be given an index or a value outside of what it can take."""


class NotChecked(RuntimeError):
    """An operation was about to be launched whose indices cannot be checked."""


class BoundsChecked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Around a step that is run with a change. `rows`: the batch has other rows than it had, so shapes are new too.

    `strict` refuses what cannot be checked; by default on every device but the CPU, where kernels check by themselves.
    """

    def __init__(self, *, rows: bool, strict: bool | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows, self.strict = rows, strict

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if hasattr(func, "_schema"):
            self._check(func, args, kwargs)
        return func(*args, **kwargs)

    def _check(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        op = op_name(func)
        check = _CHECKS.get(op)
        tensors = [item for item in _flat((args, tuple(kwargs.values()))) if isinstance(item, Tensor)]
        strict = any(t.device.type not in ("cpu", "meta") for t in tensors) if self.strict is None else self.strict
        if check is not None:
            named = _named(func, args, kwargs)
            odd = next((why for t in tensors if (why := why_not_read(t)) is not None), None)
            if odd is None:
                check(named)
            elif strict:
                raise NotChecked(f"{op} is given a {odd}, so its indices cannot be checked")
            return
        if strict and tensors:
            self._refuse_unknown(func, op, tensors, _named(func, args, kwargs))

    def _refuse_unknown(self, func: Any, op: str, tensors: list[Tensor], named: Named) -> None:
        if is_of_extension(func) and (self.rows or any(map(_is_integer, tensors))):
            raise NotChecked(f"{func._schema.name} is a kernel of an extension and cannot be checked for other rows")
        if self.rows and any(why_not_read(tensor) for tensor in tensors):
            raise NotChecked(f"{op} is given a {next(filter(None, map(why_not_read, tensors)))}, which is not checked")
        if any(map(_is_integer, tensors)) and not _is_harmless(func, op) and not _only_computes(op, named):
            raise NotChecked(f"{op} takes integers that cannot be checked")


def is_of_extension(func: Any) -> bool:
    """Whether this operation is not one of torch: its kernel may do anything with what it is given."""
    schema = getattr(func, "_schema", None)
    return schema is not None and str(schema.name).partition("::")[0] not in _OURS


@contextmanager
def no_unseen_kernels() -> Iterator[None]:
    """Refuse Triton kernels for the block: they are launched past torch and are written for certain shapes."""
    module = sys.modules.get("triton.runtime.jit")
    kernel = getattr(module, "JITFunction", None)
    if kernel is None or not hasattr(kernel, "run"):
        yield
        return
    run = kernel.run

    def refused(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(self, "__name__", "")
        raise NotChecked(f"the Triton kernel {name} cannot be checked for other rows")

    kernel.run = refused
    try:
        yield
    finally:
        kernel.run = run


def _flat(items: Any) -> Iterator[Any]:
    for item in items:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Named:
    names = [argument.name for argument in func._schema.arguments]
    return {**dict.fromkeys(names), **dict(zip(names, args, strict=False)), **kwargs}


def _is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool


def _only_computes(op: str, named: Named) -> bool:
    """Whether whatever integers an operation of torch takes stand where it takes numbers to compute with, or bytes that
    another operation left for it, and not where it takes places, lengths or class numbers."""
    integers = (
        name
        for name, value in named.items()
        if any(isinstance(item, Tensor) and _is_integer(item) for item in _flat((value,)))
    )
    return op not in _PLACES_IN_SELF and all(name in _OPERANDS for name in integers)


def _is_harmless(func: Any, op: str) -> bool:
    """Whether an operation of torch does not use integers as places: it computes with them, moves or compares them."""
    tags = getattr(func, "tags", ())
    name = str(func._schema.name).partition("::")[2]
    return (
        bool(getattr(func, "is_view", False))
        or torch.Tag.pointwise in tags
        or torch.Tag.reduction in tags
        or name.startswith(("_foreach_", "_fused_", "_amp_"))
        or op in _HARMLESS
        or op.endswith(("_like", "_copy"))
        or op.startswith(("new_", "scaled_dot_product_", "linalg_"))
    )


# -- what is checked, by operation


def within(index: Any, low: int, high: int, what: str, *, except_for: int | None = None) -> None:
    """Raise OutOfBounds unless every entry of an integer tensor lies in low <= entry < high. One read."""
    if not isinstance(index, Tensor) or not _is_integer(index) or index.numel() == 0:
        return
    if except_for is not None:
        index = torch.where(index == except_for, max(low, 0) if high > low else low, index)
        if high <= low and bool((index != except_for).any()):
            raise OutOfBounds(f"{what}: nothing to point at")
    least, most = torch.stack(torch.aminmax(index)).tolist()
    if least < low or most >= high:
        raise OutOfBounds(f"{what}: index {most if most >= high else least} is outside of {max(low, 0)} to {high - 1}")


def _along(op: str, *, negative: bool = False) -> Check:
    """An index along one dimension of `self`."""

    def check(named: Named) -> None:
        own, dim = named["self"], named["dim"]
        size = own.shape[dim] if own.dim() else 1
        within(named["index"], -size if negative else 0, size, op)

    return check


def _index(named: Named) -> None:
    own, dim = named["self"], 0
    for index in named["indices"]:
        if index is None:
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()
        else:
            size = own.shape[dim] if dim < own.dim() else 0
            within(index, -size, size, "index")
            dim += 1


def _flat_index(named: Named) -> None:
    size = named["self"].numel()
    within(named["index"], -size, size, "take")


def _embedding(named: Named) -> None:
    table = named["weight"] if "weight" in named else named["self"]
    within(named["indices"], 0, table.shape[0], "embedding")
    offsets = named.get("offsets")
    if offsets is not None:
        within(offsets, 0, named["indices"].numel() + 1, "embedding_bag offsets")


def _embedding_backward(named: Named) -> None:
    within(named["indices"], 0, named["num_weights"], "embedding", except_for=named.get("padding_idx"))


def _classes(named: Named) -> None:
    own = named["self"]
    classes = own.shape[1] if own.dim() > 1 else own.shape[0] if own.dim() else 1
    within(named["target"], 0, classes, "class number", except_for=named.get("ignore_index"))


def _several_classes(named: Named) -> None:
    own = named["self"]
    within(named["target"], -1, own.shape[-1] if own.dim() else 1, "class number")


def _sequences(named: Named) -> None:
    scores = named["log_probs"]
    within(named["targets"], 0, scores.shape[-1], "ctc_loss target")
    within(named.get("input_lengths"), 0, scores.shape[0] + 1, "ctc_loss input length")
    lengths = named.get("target_lengths")
    longest = named["targets"].shape[-1] if named["targets"].dim() else 0
    within(lengths, 0, longest + 1, "ctc_loss target length")
    if named["targets"].dim() == 1 and isinstance(lengths, Tensor) and int(lengths.sum()) > longest:
        raise OutOfBounds("ctc_loss: the target lengths are longer than the targets")


def _unpooled(named: Named) -> None:
    size = 1
    for side in named["output_size"]:
        size *= int(side)
    within(named["indices"], 0, size, "max_unpool")


def _chances(op: str, argument: str) -> Check:
    """Numbers that must lie between 0 and 1."""

    def check(named: Named) -> None:
        given = named.get(argument)
        if isinstance(given, Tensor) and given.numel() and not bool(((given >= 0) & (given <= 1)).all()):
            raise OutOfBounds(f"{op}: a value is not between 0 and 1")

    return check


def _weights(named: Named) -> None:
    given = named["self"]
    fine = torch.isfinite(given) & (given >= 0)
    if given.numel() and not (bool(fine.all()) and bool((given.sum(-1) > 0).all())):
        raise OutOfBounds("multinomial: a probability is negative or not finite, or a row has none")


def _repeats(named: Named) -> None:
    within(named["repeats"], 0, 1 << 40, "repeat_interleave")


def _masked_scatter(named: Named) -> None:
    own, mask = named["self"], named["mask"]
    shape: Any = torch.broadcast_shapes(own.shape, mask.shape)  # type: ignore[no-untyped-call]
    if int(mask.expand(shape).sum()) > named["source"].numel():
        raise OutOfBounds("masked_scatter: fewer values than places")


def _asserted(named: Named) -> None:
    if not bool(named["self"]):
        raise OutOfBounds(f"an assertion of the program does not hold: {named.get('assert_msg') or ''}".rstrip(": "))


_CHECKS: dict[str, Check] = {
    "index": _index,
    "unsafe_index": _index,
    "index_put": _index,
    "index_put_impl": _index,
    "unsafe_index_put": _index,
    "index_select": _along("index_select"),
    "index_add": _along("index_add"),
    "index_reduce": _along("index_reduce"),
    "index_copy": _along("index_copy", negative=True),
    "index_fill": _along("index_fill", negative=True),
    "gather": _along("gather"),
    "scatter": _along("scatter"),
    "scatter_add": _along("scatter_add"),
    "scatter_reduce": _along("scatter_reduce"),
    "take": _flat_index,
    "put": _flat_index,
    "embedding": _embedding,
    "embedding_bag": _embedding,
    "embedding_bag_forward_only": _embedding,
    "embedding_renorm": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "nll_loss_forward": _classes,
    "nll_loss_backward": _classes,
    "nll_loss2d_forward": _classes,
    "nll_loss2d_backward": _classes,
    "multi_margin_loss": _classes,
    "multi_margin_loss_backward": _classes,
    "multilabel_margin_loss_forward": _several_classes,
    "multilabel_margin_loss_backward": _several_classes,
    "ctc_loss": _sequences,
    "cudnn_ctc_loss": _sequences,
    "max_unpool2d": _unpooled,
    "max_unpool3d": _unpooled,
    "binary_cross_entropy": _chances("binary_cross_entropy", "self"),
    "bernoulli": lambda named: _chances("bernoulli", "p" if "p" in named else "self")(named),
    "multinomial": _weights,
    "repeat_interleave": _repeats,
    "masked_scatter": _masked_scatter,
    "assert_async": _asserted,
}
_OURS = frozenset({"aten", "prims", "prim", "c10d", "_c10d_functional", "profiler"})
_NAMES = """
    add addmm all any arange argmax argmin argsort aminmax baddbmm bincount bitwise_and bmm bucketize cat clone
    constant_pad_nd copy copysign count_nonzero ctc_loss_backward cummax cummin cumprod cumsum detach diag_embed
    diff dot embedding_bag_backward embedding_bag_dense_backward embedding_bag_per_sample_weights_backward
    empty_strided equal fill flip full histc im2col is_same_size isin item kthvalue lift lift_fresh
    linalg_vector_norm local_scalar_dense logcumsumexp lu_unpack masked_fill masked_select matmul max
    max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward
    adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward mean median min
    mm mode mv nonzero nonzero_static normal pack_padded_sequence pack_padded_sequence_backward
    pad_packed_sequence pin_memory prod rand random record_stream reflection_pad1d reflection_pad2d repeat
    replication_pad1d resize roll searchsorted select_backward select_scatter set slice_backward slice_scatter
    sort split_with_sizes stack sum to topk trace tril tril_indices triu triu_indices unique unique2
    unique_consecutive unique_dim var where zero
"""
_HARMLESS = frozenset(_NAMES.split())
"""Operations of torch that compute with integers, move them or compare them, and never use them as places."""
_ARGUMENTS = """
    self input other out src source tensor tensors tensor1 tensor2 mat mat1 mat2 batch1 batch2 vec vec1 vec2 value
    values x y a b min max end exponent elements test_elements the_template condition
    reserve reserveSpace reservedSpace workspace dropout_state philox_seed philox_offset rng_state unused
"""
_OPERANDS = frozenset(_ARGUMENTS.split())
"""Arguments of torch's operations that are computed with, moved or compared. The last line: what cuDNN, oneDNN and
attention leave for their own backward."""
_PLACES_IN_SELF = frozenset({"convert_indices_from_coo_to_csr"})
