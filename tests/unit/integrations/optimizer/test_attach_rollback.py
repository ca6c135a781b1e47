"""An attached optimizer goes back to a good state: the batches since are lost, the rest is exact, and that is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad import Policy

STEPS = 10
POLICY = Policy.named("balanced").but(snapshot_every=4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.25), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(loss=self.body(x).square().mean())


class Loop:
    def __init__(self, *, guarded: bool, policy: Policy = POLICY) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.9**step)
        options = {"model": self.model, "scheduler": self.schedule, "policy": policy}
        self.guard = sg.attach(self.optimizer, **options) if guarded else None
        torch.manual_seed(7)

    def train(self, batches: Sequence[Tensor], *, poke_at: int | None = None) -> None:
        for number, batch in enumerate(batches):
            if number == poke_at:
                with torch.no_grad():
                    self.model.body[0].weight[0, 0] = math.nan
            self.model(batch).loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Tensor]:
        found: dict[str, Any] = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, values in enumerate(self.optimizer.state.values()):
            found |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
        found["random numbers"] = torch.get_rng_state()
        found["rate"] = torch.tensor(self.optimizer.param_groups[0]["lr"])
        found["schedule"] = torch.tensor(self.schedule.last_epoch)
        return {name: value.clone() for name, value in found.items()}


def batches(*, without: Sequence[int] = ()) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(4, 3, generator=generator) for _ in range(STEPS)]
    return [batch for number, batch in enumerate(made) if number not in without]


def plain(*, without: Sequence[int]) -> dict[str, Tensor]:
    loop = Loop(guarded=False)
    loop.train(batches(without=without))
    return loop.state()


def differing(one: dict[str, Tensor], two: dict[str, Tensor]) -> list[str]:
    return [name for name in one.keys() | two.keys() if not torch.equal(one[name], two[name])]


def test_bad_weights_are_undone_and_the_run_is_one_that_never_saw_the_batches_since() -> None:
    wanted = plain(without=[4, 5, 6])
    loop = Loop(guarded=True)
    loop.train(batches(), poke_at=6)
    assert differing(loop.state(), wanted) == []
    (incident,) = loop.guard.incidents
    assert incident.symptom == "nan_param"
    assert "restored the state before step 4; 2 updates since are lost" in incident.decision.reason
    assert loop.guard.summary()["rolled_back"] == 1


def test_a_bad_batch_right_after_a_rollback_leaves_no_trace() -> None:
    wanted = plain(without=[4, 5, 6, 7])
    data = batches()
    data[7][0, 0] = math.nan
    loop = Loop(guarded=True)
    loop.train(data, poke_at=6)
    assert differing(loop.state(), wanted) == []


def test_a_loss_that_runs_away_is_recorded_and_nothing_is_changed() -> None:
    """Only the loop could evaluate its batches again, so a divergence cannot be demonstrated here."""
    torch.manual_seed(0)
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    with sg.attach(optimizer, model=model, policy=POLICY.but(runaway_ratio=20.0)) as guard:
        for number in range(40):
            model(torch.full((4, 3), 1.2**number)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        summary = guard.summary()
    assert (summary["rolled_back"], summary["skipped"], summary["lr_factor"]) == (0, 0, 1.0)
    assert any("SY203" in record.flags for record in guard._loops[0].log.recent)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(loss=(x @ self.slope).square().mean())
