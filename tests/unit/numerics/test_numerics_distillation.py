"""Distillation: three divergences, their gradients for both sides, and vocabularies with holes."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_cases import DTYPES, anything, assert_agrees, finite, gradient, masks, matrices
from torch import Tensor
from torch.nn.functional import kl_div

from steadygrad.numerics import distillation_loss
from steadygrad.numerics.losses.divergences import Kind
from steadygrad.numerics.published_findings import Board
from steadygrad.records.errors import UsageError

KINDS: tuple[Kind, ...] = get_args(Kind)


def plain(student: Tensor, teacher: Tensor, kind: Kind, temperature: float = 1.0, beta: float = 0.5) -> Tensor:
    """The definitions, with no care for holes: one number a row."""
    log_q, log_p = (student / temperature).log_softmax(-1), (teacher / temperature).log_softmax(-1)
    if kind == "forward":
        rows = (log_p.exp() * (log_p - log_q)).sum(-1)
    elif kind == "reverse":
        rows = (log_q.exp() * (log_q - log_p)).sum(-1)
    else:
        mixture = (beta * log_p.exp() + (1 - beta) * log_q.exp()).log()
        rows = beta * (log_p.exp() * (log_p - mixture)).sum(-1)
        rows = rows + (1 - beta) * (log_q.exp() * (log_q - mixture)).sum(-1)
    return rows * temperature**2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [1.0, 1.5, 4.0])
def test_agrees_with_float64_for_student_and_teacher(kind: Kind, dtype: torch.dtype, temperature: float) -> None:
    student, teacher = (torch.randn(8, 500) * 3).to(dtype), (torch.randn(8, 500) * 3).to(dtype)
    mask = torch.rand(8) > 0.3
    for swap in (False, True):

        def ours(x: Tensor, swap: bool = swap) -> Tensor:
            one, other = (student, x) if swap else (x, teacher)
            return distillation_loss(one, other, kind=kind, temperature=temperature, mask=mask)

        def reference(x: Tensor, swap: bool = swap) -> Tensor:
            one, other = (student.double(), x) if swap else (x, teacher.double())
            return plain(one, other, kind, temperature)[mask].mean()

        assert_agrees(ours, reference, teacher if swap else student)


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind: Kind) -> None:
    student = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    vocabulary = torch.tensor([True, True, False, True, True, True])
    mask = torch.tensor([1.0, 0.0, 0.5, 2.0])

    def loss(s: Tensor, t: Tensor) -> Tensor:
        return distillation_loss(
            s, t, kind=kind, temperature=1.7, beta=0.3, mask=mask, vocab_mask=vocabulary, rows_at_once=3
        )

    assert torch.autograd.gradcheck(loss, (student, teacher))


def test_the_forward_kind_is_torchs_kl_div() -> None:
    student, teacher = torch.randn(5, 30), torch.randn(5, 30)
    wanted = kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")
    torch.testing.assert_close(distillation_loss(student, teacher), wanted)


@settings(max_examples=60, deadline=None)
@given(student=matrices(finite), teacher=matrices(finite), kind=st.sampled_from(KINDS), mask=masks())
def test_finite_logits_give_a_finite_loss_that_is_not_negative(
    student: Tensor, teacher: Tensor, kind: Kind, mask: Tensor
) -> None:
    # A divergence is a distance of logits: kept where that distance is a float.
    student, teacher = student.clamp(-1e37, 1e37), teacher.clamp(-1e37, 1e37)
    for temperature in (1.0, 4.0):
        value, slope = gradient(
            lambda x, t=temperature: distillation_loss(x, teacher, kind=kind, temperature=t, mask=mask), student
        )
        assert value.isfinite()
        assert value >= -1e-5
        assert slope.isfinite().all()


holes = st.one_of(st.floats(-20, 20, width=32), st.just(-math.inf))


@settings(max_examples=80, deadline=None)
@given(student=matrices(holes), teacher=matrices(holes), kind=st.sampled_from(KINDS))
def test_holes_on_either_side_in_any_pattern_give_finite_results(student: Tensor, teacher: Tensor, kind: Kind) -> None:
    for swap in (False, True):
        value, slope = gradient(
            lambda x, swap=swap: distillation_loss(*((student, x) if swap else (x, teacher)), kind=kind),
            teacher if swap else student,
        )
        assert value.isfinite()
        assert value >= -1e-5
        assert slope.isfinite().all()


@settings(max_examples=60, deadline=None)
@given(student=matrices(anything), teacher=matrices(anything), kind=st.sampled_from(KINDS), mask=masks())
def test_whatever_is_masked_out_leaks_nowhere(student: Tensor, teacher: Tensor, kind: Kind, mask: Tensor) -> None:
    value, slope = gradient(lambda x: distillation_loss(x, teacher, kind=kind, mask=mask), student)
    kept = mask[:, None]
    wanted, wanted_slope = gradient(
        lambda x: distillation_loss(x, torch.where(kept, teacher, 0.0), kind=kind, mask=mask),
        torch.where(kept, student, 0.0),
    )
    torch.testing.assert_close(value, wanted, equal_nan=True)
    torch.testing.assert_close(slope, wanted_slope, equal_nan=True)
    assert not slope[~mask].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_vocabulary_is_as_if_those_tokens_were_not_there(kind: Kind) -> None:
    student, teacher = torch.randn(3, 8), torch.randn(3, 8)
    keep = torch.tensor([True, False, True, True, False, True, True, True])
    poisoned = torch.where(keep, teacher, math.nan)
    for vocabulary in (keep, keep.expand(3, 8)):
        value, slope = gradient(
            lambda x, v=vocabulary: distillation_loss(x, poisoned, kind=kind, vocab_mask=v), student
        )
        wanted, wanted_slope = gradient(lambda x: plain(x, teacher[:, keep], kind).mean(), student[:, keep])
        torch.testing.assert_close(value, wanted)
        torch.testing.assert_close(slope[:, keep], wanted_slope)
        assert not slope[:, ~keep].any()


def test_what_only_the_teacher_forbids_still_costs_the_student_in_the_forward_kind() -> None:
    teacher = torch.tensor([[0.0, 0.0, -math.inf]])
    value, slope = gradient(lambda x: distillation_loss(x, teacher), torch.zeros(1, 3))
    torch.testing.assert_close(value, torch.tensor(1.5).log())
    assert slope[0, 2] > 0


def test_what_the_student_cannot_say_is_left_out_of_both_in_the_forward_kind() -> None:
    student, teacher = torch.randn(2, 5), torch.randn(2, 5)
    student[:, 4] = -math.inf
    wanted = plain(student[:, :4], teacher[:, :4], "forward").mean()
    torch.testing.assert_close(distillation_loss(student, teacher), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_nothing_to_compare_are_zero_without_gradient_and_counted(kind: Kind, board: Board) -> None:
    nothing = torch.full((3, 4), -math.inf)
    value, slope = gradient(lambda x: distillation_loss(x, nothing, kind=kind, report_to=board), torch.randn(3, 4))
    assert value == 0
    assert not slope.any()
    assert board.counts()["empty_support"] == 3
    none = torch.zeros(3, dtype=torch.bool)
    assert distillation_loss(nothing, nothing, kind=kind, mask=none, report_to=board) == 0
    assert board.counts() == {"empty_support": 3, "empty_mask": 1}


def test_a_bad_logit_that_counts_is_never_hidden() -> None:
    for kind in KINDS:
        for bad in (math.nan, math.inf):
            student = torch.zeros(1, 4)
            student[0, 0] = bad
            assert distillation_loss(student, torch.zeros(1, 4), kind=kind).isnan()
            assert distillation_loss(torch.zeros(1, 4), student, kind=kind).isnan()


def test_float16_logits_over_a_large_vocabulary_that_break_the_plain_form() -> None:
    student, teacher = (torch.randn(2, 49_152) * 4).half(), (torch.randn(2, 49_152) * 4).half()
    p = teacher.softmax(-1)
    assert (p == 0).float().mean() > 0.4
    assert (p * (p.log() - student.log_softmax(-1))).sum(-1).mean().isnan()
    assert_agrees(
        lambda x: distillation_loss(x, teacher), lambda x: plain(x, teacher.double(), "forward").mean(), student
    )


def test_pieces_do_not_change_the_result() -> None:
    student, teacher = torch.randn(2, 5, 9), torch.randn(2, 5, 9)
    whole = gradient(lambda x: distillation_loss(x, teacher, kind="jsd"), student)
    for rows in (1, 3, 10):
        parts = gradient(lambda x, r=rows: distillation_loss(x, teacher, kind="jsd", rows_at_once=r), student)
        for one, other in zip(whole, parts, strict=True):
            torch.testing.assert_close(one, other)


def test_nothing_of_the_size_of_the_logits_is_kept_for_backward_but_the_logits() -> None:
    student, teacher = torch.randn(64, 300, requires_grad=True), torch.randn(64, 300)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        distillation_loss(student, teacher, temperature=2.0)
    large = {tensor.data_ptr() for tensor in kept if tensor.numel() >= student.numel()}
    assert large == {student.data_ptr(), teacher.data_ptr()}


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"kind": "sideways"}, "'sideways' is not known"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"beta": 1.0}, "beta=1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(kwargs: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        distillation_loss(torch.ones(1, 3), torch.ones(1, 3), **kwargs)  # type: ignore[arg-type]


def test_two_vocabularies_that_differ_say_what_to_do() -> None:
    with pytest.raises(UsageError, match="vocab_mask="):
        distillation_loss(torch.ones(1, 3), torch.ones(1, 4))
