"""Give a denominator or an argument a floor above zero.

What it sees
    A division by zero, a logarithm of zero, a root differentiated at zero.

Why it hurts
    Zero is the one value at which these have no finite result or slope.

Smallest example
    num / den.clamp_min(1e-6); torch.sqrt(v + 1e-8); torch.log(p.clamp_min(1e-12))
    # instead of
    num / den; torch.sqrt(v); torch.log(p)

What to do
    Add the floor inside the call, before the function.

Safety
    Close: exact for all values above the floor.

References
    https://github.com/pytorch/pytorch/issues/4320
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial

import torch

from ....detect.tensors.foreign_objects import isinstance
from ....records.rules import Rule
from ...interventions.call_arguments import Operate, floor_denominator, on_argument, tiny
from ..remedy_context import Proposal, RemedyContext
from ..suggested_line import with_floor
from .bounded_before_use import propose_bounds

RULE = Rule("RX130", "eps", "Give a denominator or an argument a floor above zero.")
HIGHER = 1e3
"""A reciprocal of the smallest floor is finite and huge; what is made of it next may need a floor above that."""
FLOORED = frozenset(
    {"zero_division", "log_zero", "sqrt_grad_at_zero", "cancellation", "fp16_underflow", "where_grad_trap"}
)

OWN_EPS = (
    "normalize", "cosine_similarity", "layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm",
)  # fmt: skip
"""Calls that take an eps, which is what gets larger."""
SECOND = ("fmod", "remainder", "xlogy", "floor_divide", "floordiv")
"""Calls whose second argument must not be zero."""
MATRICES = frozenset(
    {
        "logdet",
        "slogdet",
        "det",
        "inv",
        "inv_ex",
        "inverse",
        "pinv",
        "pinverse",
        "solve",
        "solve_ex",
        "solve_triangular",
        "triangular_solve",
        "cholesky",
        "cholesky_ex",
        "cholesky_inverse",
        "lu_factor",
        "eigh",
        "eigvalsh",
        "svd",
        "svdvals",
        "qr",
        "lstsq",
    }
)
"""Calls whose first argument is a matrix that must not be singular, or have two equal values."""


def _repair(call: str, lift: float = 1.0) -> Operate:
    """Which argument gets the floor: the denominator of a division, else the first. `lift` raises the floor."""
    if call in ("div", "truediv", "true_divide", "divide"):
        return partial(_over_a_floor, on_argument(1, partial(floor_denominator, lift=lift)), lift)
    if call == "addcdiv":
        return on_argument(2, partial(floor_denominator, lift=lift))
    if call in SECOND:
        return on_argument(1, partial(floor_denominator, lift=lift))
    if call in ("rtruediv", "rdiv", "reciprocal"):
        return on_argument(0, partial(floor_denominator, lift=lift))
    if call in OWN_EPS:
        return partial(_wider_eps, min(1e-3 * lift, 0.1))
    if call.removeprefix("linalg_") in MATRICES:
        return on_argument(0, partial(_off_singular, lift))
    return partial(_eps_of_its_own, on_argument(0, partial(_floor, lift)), 1e-6 * lift)


def _eps_of_its_own(
    floored: Operate, eps: float, func: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A function that was given a number of zero (a temperature) gets a floor there, one that takes an eps a larger
    one; of any other the argument gets a floor."""
    try:
        given = inspect.signature(func).bind(*args, **kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return floored(func, args, kwargs)
    known = given.signature.parameters
    numbers = {name: eps for name, value in given.arguments.items() if _is_zero(value, known[name])}
    if not numbers and "eps" in known:
        before = given.arguments.get("eps")
        numbers = {"eps": max(eps, float(before)) if isinstance(before, int | float) else eps}
    if not numbers:
        return floored(func, args, kwargs)
    given.arguments.update(numbers)
    return func(*given.args, **given.kwargs)  # type: ignore[operator]


def _is_zero(value: object, parameter: inspect.Parameter) -> bool:
    """Whether a plain number that a function may divide by is zero: not a dimension, a flag or a count."""
    takes_fractions = isinstance(parameter.default, float) or parameter.annotation in (float, "float")
    return (isinstance(value, float) or (type(value) is int and takes_fractions)) and value == 0


def _off_singular(lift: float, tensor: torch.Tensor) -> torch.Tensor:
    """A matrix with something on its diagonal, another number in every place, so that no two of its values coincide."""
    if tensor.dim() < 2 or not tensor.is_floating_point():
        return tensor
    rows, columns = tensor.shape[-2:]
    least = lift * tiny(tensor) * torch.arange(1, min(rows, columns) + 1, dtype=tensor.dtype, device=tensor.device)
    return tensor + torch.nn.functional.pad(torch.diag(least), (0, columns - len(least), 0, rows - len(least)))


def _over_a_floor(
    floored: Operate, lift: float, func: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A division by a tensor, or by a plain number, that is nowhere too small."""
    if len(args) > 1 and isinstance(args[1], int | float) and abs(args[1]) < 1e-6:
        args = (args[0], 1e-6 * lift, *args[2:])
    return floored(func, args, kwargs)


def _floor(lift: float, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clamp_min(lift * tiny(tensor)) if tensor.is_floating_point() else tensor


def _wider_eps(eps: float, func: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    return func(*args, **{**kwargs, "eps": eps})  # type: ignore[operator]


def _line(context: RemedyContext, lift: float) -> str | None:
    """The user's line with the floor in it that is tried."""
    origin, exam = context.origin, context.exam
    if origin is None or exam is None or context.call.removeprefix("linalg_") in {*MATRICES, *OWN_EPS, *SECOND}:
        return None
    given = exam.captured_op.tensors[:1]
    least = lift * (tiny(given[0]) if given and isinstance(given[0], torch.Tensor) else 1e-6)
    divisor = origin.inputs[1].dtype if len(origin.inputs) > 1 else ""
    return with_floor(origin.code_line, context.call, divisor=divisor, least=least)


def propose(context: RemedyContext) -> Iterator[Proposal]:
    matrix = context.call.removeprefix("linalg_") in MATRICES
    at_zero = context.cause == "domain_edge_grad" and (context.evidence.facts.argument_zero or matrix)
    # A discarded number far below zero needs a bound (RX131): nothing small that is added to it helps.
    below = context.cause == "where_grad_trap" and context.evidence.facts.argument_negative
    if context.silent or below or not context.can_operate() or not (context.cause in FLOORED or at_zero):
        return
    once = [*propose_bounds(context, RULE.code)]
    yield from once
    for lift, words in ((1.0, "a floor"), (HIGHER, "a higher floor")):
        yield Proposal(
            code=RULE.code,
            slug="eps",
            change=f"{words} under the argument of {context.call}",
            make=context.operation(_repair(context.call, lift)),
            safety="close",
            code_change=_line(context, lift),
            own_line=True,
            if_needed=lift > 1 or bool(once),
            in_proportion=bool(once),
        )
    for also, words in ((None, f"every {context.call}"), (_every_floor(), "every division, logarithm and root")):
        yield Proposal(
            code=RULE.code,
            slug="eps",
            change=f"a floor under the argument of {words} in this file",
            make=context.operation(_repair(context.call), everywhere=True, also=also),
            safety="close",
            if_needed=True,
            in_proportion=bool(once),
        )


def _every_floor() -> dict[str, Operate]:
    """One degenerate number often meets several functions: each gets a floor."""
    return {
        written: _repair(written.strip("_"))
        for written in ("div", "__truediv__", "__rtruediv__", "reciprocal", "log", "log2", "log10", "sqrt", "rsqrt")
    }
