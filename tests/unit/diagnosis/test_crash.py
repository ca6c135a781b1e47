"""An exception one line after a NaN was born reaches its owner unchanged, and the incident names the NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg


def masked_mean(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    hidden = model(batch["x"]) * batch["mask"]
    pooled = hidden.sum(1) / batch["mask"].sum(1)
    return F.binary_cross_entropy(torch.sigmoid(pooled), batch["y"])


def batches(count: int = 5) -> list[dict[str, Tensor]]:
    random = torch.Generator().manual_seed(5)
    made = [
        {"x": torch.randn(4, 3, generator=random), "mask": torch.ones(4, 3), "y": torch.ones(4)} for _ in range(count)
    ]
    made[3]["mask"][2] = 0.0
    return made


def guarded(loss_fn: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1))
    return sg.Guard(model, torch.optim.Adam(model.parameters(), lr=0.1), loss_fn, **options)


def test_the_incident_names_the_division_and_the_exception_is_the_users_own() -> None:
    data = batches()
    with guarded(masked_mean) as guard:
        for batch in data[:3]:
            guard.step(batch)
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            guard.step(data[3])
        (incident,) = guard.incidents
        found = incident.diagnosis
        assert found.cause.slug == "zero_division"
        assert found.origin.op == "div"
        assert 'batch["mask"].sum(1)' in found.origin.code_line
        assert found.rows == (2,)
        assert "eps" in [trial.remedy.slug for trial in found.remedies]  # with a floor the step does not raise at all
        assert any("between 0 and 1" in note for note in found.notes)
        assert guard.step(data[4]).applied
        assert not guard.summary()["guard_faults"]


def test_looking_for_the_nan_leaves_no_trace() -> None:
    def weights(diagnose: str) -> list[Tensor]:
        with guarded(masked_mean, diagnose=diagnose) as guard:
            for batch in batches():
                try:
                    guard.step(batch)
                except RuntimeError:
                    continue
            return [*(p.detach().clone() for p in guard.model.parameters()), torch.get_rng_state()]

    assert all(torch.equal(a, b) for a, b in zip(weights("auto"), weights("off"), strict=True))


def test_an_ordinary_mistake_is_neither_run_again_nor_called_an_incident() -> None:
    calls = []

    def mistaken(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        calls.append(1)
        return model(batch["x"]) @ torch.ones(7, 7)

    with guarded(mistaken) as guard:
        with pytest.raises(RuntimeError, match="shapes"):
            guard.step(batches()[0])
        assert guard.incidents == []
    assert len(calls) == 1


def test_a_nan_that_is_about_but_does_not_feed_the_exception_is_not_blamed() -> None:
    def mistaken(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        spare = torch.tensor([float("nan")])
        assert spare.isnan().all()
        return (model(batch["x"]).sum() + missing_piece(batch)).mean()

    def missing_piece(batch: dict[str, Tensor]) -> Tensor:
        raise ValueError(f"no piece called so among {len(batch)}")

    with guarded(mistaken) as guard:
        with pytest.raises(ValueError, match="no piece"):
            guard.step(batches()[0])
        assert guard.incidents == []
        assert not guard.summary()["guard_faults"]
