"""Reading the origin's own tensors: was the denominator zero, the argument negative, the row masked out?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.torch_private import tree_map
from ..causes.evidence import OpFacts
from ..isolation.device_memory import forget
from ..isolation.index_bounds import is_of_extension
from .op_capture import CapturedOp

DIVISIONS = frozenset({"div", "reciprocal", "true_divide", "rsqrt", "remainder", "fmod", "addcdiv", "divide"})
_EDGES = {"acos": 1.0, "asin": 1.0, "atanh": 1.0, "erfinv": 1.0}


def op_facts(
    captured_op: CapturedOp, *, forward: CapturedOp | None = None, incoming: torch.Tensor | None = None
) -> OpFacts:
    """Facts of one op caught in the act. `forward` is the op behind a backward-computed value, `incoming` its
    gradient."""
    if captured_op.record is None or not captured_op.output_tensors:
        return OpFacts()
    out = next((t for t in captured_op.output_tensors if _real(t) and not bool(torch.isfinite(t).all())), None)
    if out is None:
        return OpFacts()
    bad = ~torch.isfinite(out)
    op = captured_op.record.op
    tensors = [tensor for tensor in captured_op.tensors if _real(tensor) or op in DIVISIONS]
    about = forward if forward is not None and forward.record is not None else captured_op
    assert about.record is not None
    forward_op = about.record.op
    arguments = [tensor.abs() if tensor.is_complex() else tensor for tensor in about.tensors if _real(tensor)]
    argument = _at(arguments[0], bad) if arguments else None
    if argument is None and arguments:
        argument = arguments[0].reshape(-1)
    denominator = _denominator(op, tensors, bad)
    incoming_at = _at(incoming, bad) if incoming is not None else None
    return OpFacts(
        argument_zero=_all(argument, lambda t: t == 0),
        argument_negative=_any(argument, lambda t: t < 0),
        argument_at_edge=_at_edge(forward_op, argument),
        scalar_base=op == "pow" and bool(captured_op.args) and isinstance(captured_op.args[0], int | float),
        denominator_zero=_divides_by_zero(captured_op, op)
        or (denominator is not None and bool((denominator == 0).any())),
        incoming_zero=_all(incoming_at, lambda t: t == 0),
        masked_row=_masked_row(about),
        num_reduced=_num_reduced(captured_op, out),
        **_wider(captured_op),
    )


def _real(tensor: torch.Tensor) -> bool:
    """Whether it holds real numbers, or complex ones."""
    return tensor.is_floating_point() or tensor.is_complex()


def _at_edge(op: str, argument: torch.Tensor | None) -> bool:
    if op == "acosh":
        return _any(argument, lambda t: t <= 1 + 1e-6)
    return op in _EDGES and _any(argument, lambda t: t.abs() >= _EDGES[op] - 1e-6)


def _divides_by_zero(captured_op: CapturedOp, op: str) -> bool:
    """Whether a plain number, zero, stands under the division."""
    given = captured_op.args[1] if len(captured_op.args) > 1 else None
    return op in ("div", "true_divide", "divide") and isinstance(given, int | float) and given == 0


def _all(values: torch.Tensor | None, test: Any) -> bool:
    return values is not None and values.numel() > 0 and bool(test(values).all())


def _any(values: torch.Tensor | None, test: Any) -> bool:
    return values is not None and values.numel() > 0 and bool(test(values).any())


def _at(tensor: torch.Tensor, bad: torch.Tensor) -> torch.Tensor | None:
    """The entries of an input where the output was bad, if the op is elementwise up to broadcasting."""
    try:
        return torch.broadcast_to(tensor, bad.shape)[bad]
    except RuntimeError:
        return None


def _denominator(op: str, tensors: Sequence[torch.Tensor], bad: torch.Tensor) -> torch.Tensor | None:
    if op not in DIVISIONS or not tensors:
        return None
    chosen = tensors[0] if op in ("reciprocal", "rsqrt") else tensors[-1]
    if op not in ("reciprocal", "rsqrt") and len(tensors) < 2:
        return None
    return _at(chosen, bad)


def _masked_row(captured_op: CapturedOp) -> bool:
    """Whether a softmax met a row with nothing but -inf."""
    if captured_op.record is None or ("softmax" not in captured_op.record.op and captured_op.record.op != "logsumexp"):
        return any(
            tensor.is_floating_point() and tensor.dim() >= 1 and bool(torch.isneginf(tensor).all(-1).any())
            for tensor in captured_op.tensors
            if captured_op.record is not None and "attention" in captured_op.record.op
        )
    scores = captured_op.tensors[0]
    dims = [arg for arg in captured_op.args[1:] if isinstance(arg, int | list) and not isinstance(arg, bool)]
    dim = dims[0] if dims and isinstance(dims[0], int) else -1
    return bool(torch.isneginf(scores).all(dim).any()) if scores.dim() else False


def _num_reduced(captured_op: CapturedOp, out: torch.Tensor) -> int | None:
    """How many entries went into each number of a reduction; None for other ops."""
    tensors = captured_op.tensors
    if captured_op.record is None or not tensors:
        return None
    op = captured_op.record.op
    if op in ("nll_loss_forward", "nll_loss2d_forward") and len(captured_op.output_tensors) > 1:
        total = captured_op.output_tensors[1]
        return int(total) if math.isfinite(float(total)) else None
    if op in ("mean", "var", "std", "var_mean", "std_mean", "median", "nanmedian", "nanmean"):
        return tensors[0].numel() // max(out.numel(), 1)
    return None


def _wider(captured_op: CapturedOp) -> dict[str, Any]:
    """The same op on the same numbers in float32 and float64: finite there or not?"""
    found: dict[str, Any] = {}
    for width, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        values = _run_in(captured_op, dtype)
        if values is None:
            continue
        found[f"{width}_finite"] = bool(torch.isfinite(values).all())
        if width == "float64":
            finite = values[torch.isfinite(values)]
            found["float64_absmax"] = float(finite.abs().max()) if finite.numel() else 0.0
    return found


def _run_in(captured_op: CapturedOp, dtype: torch.dtype) -> torch.Tensor | None:
    tensors = captured_op.tensors
    if captured_op.func is None or any(argument is None for argument in tensors):
        return None
    elsewhere = captured_op.on_host or any(tensor.device.type != "cpu" for tensor in tensors)
    if elsewhere and is_of_extension(captured_op.func):
        return None  # a kernel that reads what it is given as another type may leave the device unusable

    def widen(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.to(dtype) if item.is_floating_point() else item.clone()
        return dtype if isinstance(item, torch.dtype) and item.is_floating_point else item

    try:
        out = captured_op.func(*tree_map(widen, tuple(captured_op.args)), **tree_map(widen, dict(captured_op.kwargs)))
    except Exception as error:  # a kernel of an extension may raise anything for a type it was not written for
        forget(error)
        return None
    first = out[0] if isinstance(out, tuple | list) else out
    return first if isinstance(first, torch.Tensor) and first.is_floating_point() else None
