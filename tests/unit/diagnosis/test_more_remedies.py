"""Remedies that ask the function itself, differentiate plainly, or put values back into the graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steadygrad.diagnosis.interventions.call_arguments import (
    guarded,
    masked_where_unsound,
    replaced_where_unsound,
    sound_at,
    within_sound_range,
)
from steadygrad.diagnosis.interventions.custom_functions import PlainBackward, function_at
from steadygrad.diagnosis.interventions.optimizer_changes import WithoutZeroGradients
from steadygrad.diagnosis.interventions.rejoin_graph import Rejoin
from steadygrad.diagnosis.locate.op_capture import CapturedOp
from steadygrad.diagnosis.remedies.arithmetic.rx130_eps import _repair
from steadygrad.diagnosis.replay.replay_step import ReplayChange
from steadygrad.diagnosis.trace.tracer import op_name


class Forgetful(torch.autograd.Function):
    """A product whose backward forgets its second factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return gradient * weight, None


def test_where_a_function_is_finite_is_found_by_calling_it() -> None:
    x = torch.tensor([0.0, 0.25, 1.0, 4.0, -1.0])
    sound = sound_at(torch.sqrt, (x,), {}, 0)
    assert sound is not None
    assert sound.tolist() == [False, True, True, True, False]  # at nought the slope is infinite
    assert sound_at(torch.sum, (x,), {}, 0) is None  # no function of one value each


def test_an_argument_is_bounded_to_where_the_function_is_finite() -> None:
    x = torch.tensor([-30.0, 0.5, 2.0], requires_grad=True)
    assert not torch.special.erfcx(x).isfinite().all()
    out = within_sound_range(torch.special.erfcx, (x,), {})
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert torch.equal(out[1:], torch.special.erfcx(x.detach()[1:]))


@pytest.mark.parametrize("repair", [masked_where_unsound, replaced_where_unsound])
def test_the_double_where_works_for_functions_that_are_on_no_list(repair: Any) -> None:
    x = torch.tensor([0.0, 0.5, 2.0], requires_grad=True)
    out = torch.where(x > 0, repair(torch.lgamma, (x,), {}), 0.0)
    out.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, torch.tensor([0.0, *torch.digamma(torch.tensor([0.5, 2.0])).tolist()]))


@pytest.mark.filterwarnings("ignore:var_mean")
def test_a_guard_also_holds_for_functions_that_give_a_pair() -> None:
    variance, mean = guarded(torch.var_mean, (torch.tensor([3.0]),), {"dim": 0})
    assert (float(variance), float(mean)) == (0.0, 3.0)


def test_a_custom_function_is_found_by_a_line_of_its_source_and_differentiated_plainly() -> None:
    assert function_at(f"{__file__}:{Forgetful.forward.__code__.co_firstlineno + 2}") is Forgetful
    assert function_at(f"{__file__}:1") is None
    x, weight = torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([5.0, 7.0], requires_grad=True)
    Forgetful.apply(x, weight).sum().backward()
    assert weight.grad is None
    with PlainBackward(Forgetful).around():
        Forgetful.apply(x, weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 3.0]
    weight.grad = None
    Forgetful.apply(x, weight).sum().backward()  # as it was
    assert weight.grad is None


def _rejoined(change: ReplayChange, compute: Any, weight: Tensor) -> Tensor | None:
    with change.around():
        loss = compute()
        if loss.requires_grad:
            loss.backward()
    return weight.grad


def test_a_number_read_with_item_stays_in_the_graph() -> None:
    weight = nn.Parameter(torch.tensor(2.0))
    x = torch.tensor([1.0, 3.0])

    def compute() -> Tensor:
        return (torch.sigmoid(weight).item() * x).sum()

    site = (__file__, compute.__code__.co_firstlineno + 1)
    assert not compute().requires_grad
    grad = _rejoined(Rejoin(site, frozenset()), compute, weight)
    slope = torch.sigmoid(torch.tensor(2.0)) * (1 - torch.sigmoid(torch.tensor(2.0)))
    assert grad is not None
    assert torch.allclose(grad, 4 * slope)


def test_values_that_go_through_numpy_or_a_new_tensor_stay_in_the_graph() -> None:
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def by_numpy() -> Tensor:
        return torch.from_numpy((weight * 2).detach().numpy().copy()).sum()

    def by_copy() -> Tensor:
        return torch.tensor((weight * 2).tolist()).sum()

    for compute in (by_numpy, by_copy):
        weight.grad = None
        site = (__file__, compute.__code__.co_firstlineno + 1)
        grad = _rejoined(Rejoin(site, frozenset()), compute, weight)
        assert grad is not None
        assert grad.tolist() == [2.0, 2.0]


def test_a_zeroed_gradient_no_longer_moves_its_weight() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    def commit() -> None:
        assert model.weight.grad is not None
        model.weight.grad.zero_()
        optimizer.step()

    before, bias = model.weight.detach().clone(), model.bias.detach().clone()
    replayable: Any = SimpleNamespace(model=model, optimizers=[optimizer], commit=commit)
    WithoutZeroGradients(("weight",)).commit(replayable, Any)  # type: ignore[arg-type]
    assert torch.equal(model.weight.detach(), before)
    assert not torch.equal(model.bias.detach(), bias)


def test_an_op_over_lists_is_shown_as_the_one_that_went_wrong() -> None:
    values = [torch.ones(2), torch.ones(3), torch.ones(2)]
    above = [torch.ones(2), torch.zeros(3), torch.ones(2)]
    below = [torch.ones(2), torch.zeros(3), torch.ones(2)]
    captured_op = CapturedOp()
    watch = captured_op.watcher()
    func = torch.ops.aten._foreach_addcdiv_.Scalar
    record: Any = SimpleNamespace(op=op_name(func), scalars=(1.0,))
    watch(record, func, (values, above, below, 1), {}, None)
    func(values, above, below, 1)
    watch(record, func, (values, above, below, 1), {}, None)
    assert [d.shape for d in captured_op.inputs] == [(3,), (3,), (3,)]
    assert captured_op.inputs[0].num_nan == 0  # as it was before the op wrote over it
    assert (captured_op.outputs[0].dtype, captured_op.outputs[0].num_nan) == ("float32", 3)


def test_a_number_of_zero_that_a_function_divides_by_inside_gets_a_floor() -> None:
    logits = torch.randn(2, 3)
    assert torch.nn.functional.gumbel_softmax(logits, tau=0.0).isnan().any()
    for given in ({"tau": 0.0}, {"tau": 0}):
        made = _repair("gumbel_softmax")(torch.nn.functional.gumbel_softmax, (logits,), {**given, "dim": 0})
        assert isinstance(made, Tensor)
        assert torch.allclose(made.sum(0), torch.ones(3))  # the dimension is no number to divide by
