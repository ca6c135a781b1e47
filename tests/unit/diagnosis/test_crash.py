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


def test_a_factorization_of_a_singular_matrix_is_the_origin_where_nothing_is_nan() -> None:
    def likelihood(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        hidden = model(batch["x"])[batch["mask"][:, 0] > 0]
        centred = hidden - hidden.mean(0)
        covariance = centred.T @ centred / len(hidden)
        return torch.linalg.cholesky(covariance).diagonal().log().sum() - hidden.mean()

    data = batches()
    data[3]["mask"][1:] = 0.0  # one row is left of four
    with guarded(likelihood) as guard:
        guard.model[1].p = 0.0
        for batch in data[:3]:
            guard.step(batch)
        with pytest.raises(torch.linalg.LinAlgError):
            guard.step(data[3])
        (incident,) = guard.incidents
        found = incident.diagnosis
        assert incident.headline.startswith("LinAlgError: linalg.cholesky")
        assert "not finite" not in incident.headline
        assert found.cause.slug == "cancellation"
        assert found.origin.op == "linalg_cholesky_ex"
        assert "torch.linalg.cholesky(covariance)" in found.origin.code_line
        assert "eps" in [trial.remedy.slug for trial in found.remedies]
        assert guard.step(data[4]).applied
        assert not guard.summary()["guard_faults"]


def test_a_nan_that_a_factorization_fails_by_is_still_the_origin() -> None:
    def likelihood(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        hidden = model(batch["x"]) / batch["mask"].sum(1, keepdim=True)
        return torch.linalg.cholesky(hidden.T @ hidden + 0.1 * torch.eye(3)).diagonal().log().sum()

    with guarded(likelihood) as guard:
        data = batches()
        guard.step(data[0])
        with pytest.raises(torch.linalg.LinAlgError):
            guard.step(data[3])
        assert guard.incidents[0].diagnosis.cause.slug == "zero_division"
        assert guard.incidents[0].diagnosis.origin.op == "div"
