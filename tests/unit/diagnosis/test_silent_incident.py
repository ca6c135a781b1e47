"""Silent trouble behind a guard: what the vitals warn of becomes an incident with a cause and a tried remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.journal import read_incidents


class Behind(nn.Module):
    """An encoder, and a head that may or may not let its gradient through."""

    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.cut = cut
        self.encoder, self.drop, self.head = nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.encoder(x))
        if self.cut:
            hidden = hidden.detach()  # the cut
        return self.head(self.drop(hidden))


def batches(count: int = 8) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(6, 6, generator=generator), "y": torch.randint(0, 2, (6,), generator=generator)}
        for _ in range(count)
    ]


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]).float(), batch["y"])


def run(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, loss: Callable[..., Any] = loss_fn, **options: Any
) -> sg.Guard:
    torch.manual_seed(3)
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    with sg.Guard(model, optimizer, loss, **options) as guard:
        for batch in batches():
            guard.step(batch)
    return guard


def the_diagnosis(guard: sg.Guard) -> Any:
    (incident,) = guard.incidents
    assert incident.symptom == "silent"
    assert incident.diagnosis is not None
    return incident.diagnosis


def test_an_encoder_behind_a_detach_is_traced_to_the_line_and_the_cure_is_tried(tmp_path: Path) -> None:
    torch.manual_seed(0)
    guard = run(Behind(cut=True), run_dir=tmp_path / "run")
    found = the_diagnosis(guard)
    assert found.cause.slug == "no_trainable_grad"
    assert found.origin.module == "encoder"
    assert found.origin.code_line == "hidden = hidden.detach()  # the cut"
    assert "no_detach" in [trial.remedy.slug for trial in found.remedies]
    (kept,) = read_incidents(tmp_path / "run")
    assert kept.diagnosis is not None
    assert kept.diagnosis.cause == found.cause


def test_a_head_made_after_the_optimizer_is_given_to_it_in_a_trial() -> None:
    torch.manual_seed(0)
    model = Behind(cut=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.head = nn.Linear(8, 2)
    found = the_diagnosis(run(model, optimizer))
    assert found.cause.slug == "no_trainable_grad"
    assert found.origin.module == "head"
    assert [trial.remedy.slug for trial in found.remedies] == ["rebuild_optimizer"]
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(model.head.weight) not in held  # the trial was taken back


def test_bfloat16_weights_that_no_step_moves_are_told_what_would_move_them() -> None:
    torch.manual_seed(0)
    model = Behind(cut=False).to(torch.bfloat16)

    def in_bfloat16(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return loss_fn(model, {**batch, "x": batch["x"].to(torch.bfloat16)})

    found = the_diagnosis(run(model, torch.optim.SGD(model.parameters(), lr=1e-6), in_bfloat16))
    assert found.cause.slug == "lost_update"
    assert "fp32" in [trial.remedy.slug for trial in found.remedies]


def test_a_healthy_run_has_no_incident() -> None:
    torch.manual_seed(0)
    assert run(Behind(cut=False)).incidents == []


def test_without_diagnosis_a_warning_stays_a_finding() -> None:
    torch.manual_seed(0)
    guard = run(Behind(cut=True), diagnose="off")
    assert guard.incidents == []
    assert [found.code for found in guard.vitals] == ["SY404"]


@pytest.mark.parametrize("fused", [False, True])
def test_looking_into_it_leaves_no_trace(fused: bool) -> None:
    def weights(diagnose: str) -> tuple[dict[str, Tensor], list[Any]]:
        torch.manual_seed(0)
        model = Behind(cut=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        guard = run(model, optimizer, diagnose=diagnose, settle="late" if fused else "now")
        moments = [value for state in optimizer.state.values() for value in state.values()]
        assert len(guard.incidents) == (diagnose == "auto")
        return model.state_dict(), [*moments, torch.get_rng_state()]

    looked, looked_state = weights("auto")
    plain, plain_state = weights("off")
    assert all(torch.equal(looked[name], plain[name]) for name in plain)
    assert len(looked_state) == len(plain_state)
    assert all(torch.equal(a, b) for a, b in zip(looked_state, plain_state, strict=True))
