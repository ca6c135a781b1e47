"""Where no other batch is kept a trial says so, and never takes the failing batch for the next one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.diagnosis.diagnose import diagnose
from steadygrad.records import Diagnosis, Trial


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return torch.log(batch["weight"]).abs().mul(model(batch["x"]).squeeze(-1)).mean()


def alone(make_replayable: Any) -> Diagnosis:
    torch.manual_seed(0)
    weight = torch.full((6,), 2.0)
    weight[2] = 0.0
    return diagnose(make_replayable(nn.Linear(4, 1), loss_fn, [{"x": torch.randn(6, 4), "weight": weight}], 0))


def of(found: Diagnosis, slug: str) -> Trial:
    return next(trial for trial in found.trials if trial.remedy.slug == slug)


def test_rows_that_are_left_out_stay_out_where_the_failing_batch_is_the_only_one(make_replayable: Any) -> None:
    rows = of(alone(make_replayable), "drop_rows")
    assert rows.verified
    assert rows.verdict == "holds in this step run again; no other batch is kept to follow it on"


def test_what_was_not_tried_is_not_called_not_finite(make_replayable: Any) -> None:
    skipped = of(alone(make_replayable), "skip_batch")
    assert not skipped.tried
    assert skipped.verdict == "not tried: no other batch is kept to follow it on"
    assert of(alone(make_replayable), "clip").tried


def test_the_diagnosis_names_the_step_that_was_looked_at(make_replayable: Any) -> None:
    assert alone(make_replayable).step == 0
