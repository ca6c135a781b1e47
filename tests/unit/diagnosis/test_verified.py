"""Verified means: replayed, finite, and still finite on the following batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.records import Diagnosis, StepRecord, Trial


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (model(batch["x"]).squeeze(-1) / batch["weight"]).mean()


def batch(*, bad: bool = False) -> dict[str, Tensor]:
    weight = torch.ones(6)
    if bad:
        weight[2] = 0.0
    return {"x": torch.randn(6, 4), "weight": weight}


def skipping(found: Diagnosis) -> Trial:
    return next(trial for trial in found.trials if trial.remedy.slug == "skip_batch")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def test_leaving_a_batch_out_is_verified_where_the_following_batches_are_fine(make_replayable: Any) -> None:
    found = diagnose(make_replayable(model(), loss_fn, [batch(), batch(bad=True), *[batch() for _ in range(4)]], 1))
    trial = skipping(found)
    assert trial.verified
    assert trial.steps_followed == 4


def test_leaving_a_batch_out_is_not_verified_where_every_later_batch_fails_too(make_replayable: Any) -> None:
    found = diagnose(make_replayable(model(), loss_fn, [batch(), *[batch(bad=True) for _ in range(5)]], 1))
    trial = skipping(found)
    assert not trial.verified
    assert not trial.finite


def test_leaving_a_batch_out_is_not_verified_where_some_later_batch_fails_too(make_replayable: Any) -> None:
    data = [batch(), batch(bad=True), batch(), batch(bad=True), batch(), batch()]
    trial = skipping(diagnose(make_replayable(model(), loss_fn, data, 1)))
    assert not trial.verified
    assert trial.verdict == "1 of 4 following batches fail as well"


def test_leaving_a_batch_out_is_not_verified_where_the_one_before_it_was_refused(make_replayable: Any) -> None:
    replayable = make_replayable(model(), loss_fn, [batch(), batch(bad=True), *[batch() for _ in range(4)]], 1)
    history = (StepRecord(run="r", step=0, loss=float("nan"), applied=False),)
    replayable.facts = replace(replayable.facts, history=history)
    trial = skipping(diagnose(replayable))
    assert not trial.verified
    assert trial.verdict == "the update of the batch before it was refused as well"


def test_without_another_batch_a_remedy_is_followed_on_the_failing_one_and_skipping_is_not_verified(
    make_replayable: Any,
) -> None:
    found = diagnose(make_replayable(model(), loss_fn, [batch(bad=True)], 0))
    assert not skipping(found).verified
    assert {trial.steps_followed for trial in found.remedies} == {3}
    assert found.remedies
