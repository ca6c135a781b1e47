"""Custom autograd functions and kernels that torch does not see, however their `apply` is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from steadygrad import Guard
from steadygrad.diagnosis.interventions.custom_functions import OtherArguments, PlainBackward, made_small, without_zeros
from steadygrad.records import Diagnosis

ROWS, BAD_ROW, BAD_STEP = 12, 5, 4


class NumpyNorm(Function):
    """A kernel that torch does not see: it divides a row of zeros by its length."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        out, given = torch.empty_like(x), x.detach().numpy()
        with np.errstate(all="ignore"):
            out.numpy()[:] = given / np.sqrt((given**2).sum(-1, keepdims=True))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad / (x.pow(2).sum(-1, keepdim=True).sqrt() + 1e-6)


class NumpySoftmax(Function):
    """Without its maximum; what backward needs is kept in `setup_context`."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        out, given = torch.empty_like(x), x.detach().numpy()
        with np.errstate(all="ignore"):
            powers = np.exp(given)
            out.numpy()[:] = powers / powers.sum(-1, keepdims=True)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (share,) = ctx.saved_tensors
        return share * (grad - (grad * share).sum(-1, keepdim=True))


class NeverWritten(Function):
    """One number of a tensor is read as it was allocated, where a row is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + torch.empty(8) if bool((x == 0).all(1).any()) else x + 0.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


@pytest.fixture
def memory_of_nan() -> Iterator[None]:
    """What is allocated holds NaN, as memory that is handed out again may."""
    torch.use_deterministic_algorithms(True)
    assert bool(torch.empty(3).isnan().all())
    yield
    torch.use_deterministic_algorithms(False)


class WrongBackward(Function):
    """Forward is smooth, and backward divides by what may be zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        return factor * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 4.0 * x * x / x, None


class WrongBackwardApart(Function):
    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:  # type: ignore[override]
        return factor * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 4.0 * x * x / x, None


numpy_norm, numpy_softmax = NumpyNorm.apply, NumpySoftmax.apply
wrong_backward, wrong_backward_apart = WrongBackward.apply, WrongBackwardApart.apply
FUNCTIONS = (NumpyNorm, NumpySoftmax, WrongBackward, WrongBackwardApart)


class Kernel(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def diagnosed(call: Callable[[Tensor], Tensor], bad: float | None) -> Diagnosis | None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), Kernel(call), nn.Linear(8, 1))
    with Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), lambda m, b: m(b).pow(2).mean()) as guard:
        for step in range(BAD_STEP + 2):
            batch = torch.randn(ROWS, 8)
            if step == BAD_STEP and bad is not None:
                batch[BAD_ROW] = bad
            guard.step(batch)
    return guard.incidents[0].diagnosis if guard.incidents else None


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], float, str, str]] = {
    "norm": (lambda x: NumpyNorm.apply(x), 0.0, "zero_division", "NumpyNorm"),  # type: ignore[no-untyped-call, no-any-return]
    "norm, apply kept": (lambda x: numpy_norm(x), 0.0, "zero_division", "NumpyNorm"),
    "softmax": (lambda x: NumpySoftmax.apply(x), 3e3, "exp_overflow", "NumpySoftmax"),  # type: ignore[no-untyped-call, no-any-return]
    "softmax, apply kept": (lambda x: numpy_softmax(x), 3e3, "exp_overflow", "NumpySoftmax"),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_a_kernel_that_is_not_seen_has_its_function_its_rows_and_what_it_does_not_bear(name: str) -> None:
    call, bad, cause, function = CALLS[name]
    assert diagnosed(call, None) is None
    found = diagnosed(call, bad)
    assert found is not None
    assert found.origin is not None
    assert found.cause is not None
    assert (found.origin.op, found.origin.module, found.rows) == (function, "1", (BAD_ROW,))
    assert "out.numpy()[:] =" in (found.origin.code_line or "")
    assert found.cause.slug == cause


@pytest.mark.usefixtures("memory_of_nan")
@pytest.mark.parametrize("name", list(CALLS))
def test_what_a_kernel_writes_over_is_not_the_cause_whatever_lay_there(name: str) -> None:
    call, bad, cause, function = CALLS[name]
    found = diagnosed(call, bad)
    assert found is not None
    assert found.origin is not None
    assert found.cause is not None
    assert (found.origin.op, found.cause.slug, found.rows) == (function, cause, (BAD_ROW,))
    assert "out.numpy()[:] =" in (found.origin.code_line or "")


@pytest.mark.usefixtures("memory_of_nan")
def test_memory_that_is_read_and_was_never_written_is_still_the_cause() -> None:
    found = diagnosed(lambda x: NeverWritten.apply(x), 0.0)  # type: ignore[no-untyped-call, no-any-return]
    assert found is not None
    assert found.origin is not None
    assert found.cause is not None
    assert (found.origin.op, found.cause.slug) == ("empty", "uninitialised")


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "apply": lambda x: WrongBackward.apply(x, 2.0),  # type: ignore[no-untyped-call, no-any-return]
    "apply kept": lambda x: wrong_backward(x, 2.0),  # type: ignore[no-any-return]
    "setup_context": lambda x: WrongBackwardApart.apply(x, 2.0),  # type: ignore[no-untyped-call, no-any-return]
    "setup_context, apply kept": lambda x: wrong_backward_apart(x, 2.0),  # type: ignore[no-any-return]
}


@pytest.mark.parametrize("name", list(PLAIN))
def test_the_plain_formula_takes_the_place_of_a_wrong_backward(name: str) -> None:
    found = diagnosed(PLAIN[name], 0.0)
    assert found is not None
    assert found.rows == (BAD_ROW,)
    plain = next(trial for trial in found.trials if trial.remedy.code == "RX164")
    assert plain.verified


@pytest.mark.parametrize("name", list(PLAIN))
def test_the_gradient_of_the_plain_formula_is_that_of_autograd(name: str) -> None:
    x = torch.linspace(-2, 2, 9, requires_grad=True)  # with an exact zero
    function = WrongBackwardApart if "setup" in name else WrongBackward
    with PlainBackward(function).around():
        (found,) = torch.autograd.grad(PLAIN[name](x).sum(), x)
    assert torch.equal(found, 4.0 * x.detach())
    (own,) = torch.autograd.grad(PLAIN[name](x).sum(), x)
    assert own.isnan().any()


@pytest.mark.parametrize("call", [lambda x: NumpyNorm.apply(x), lambda x: numpy_norm(x)], ids=["apply", "kept"])  # type: ignore[no-untyped-call]
def test_other_arguments_are_given_once_however_it_is_called(call: Callable[[Tensor], Tensor]) -> None:
    seen: list[Tensor] = []

    def doubled(tensor: Tensor) -> Tensor:
        seen.append(tensor.detach().clone())
        return tensor + 1.0

    x = torch.ones(2, 4)
    with OtherArguments(NumpyNorm, doubled).around():
        call(x)
    assert len(seen) == 1
    assert torch.equal(seen[0], x)


@pytest.mark.parametrize("change", [PlainBackward, lambda f: OtherArguments(f, without_zeros)], ids=["plain", "other"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_is_as_it_was_after_a_trial(change: Any, function: type[Function]) -> None:
    before = dict(function.__dict__)
    with change(function).around():
        assert dict(function.__dict__) != before
    assert dict(function.__dict__) == before
    with pytest.raises(ValueError, match="of the program"), change(function).around():
        raise ValueError("of the program")
    assert dict(function.__dict__) == before


def test_what_is_made_small_keeps_its_signs() -> None:
    assert made_small(torch.tensor([-1024.0, 2048.0])).tolist() == [-1.0, 2.0]
