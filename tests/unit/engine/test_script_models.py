"""A scripted or traced model takes no hooks; `sg.Guard` guards it as any other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("kind", ["script", "trace", "part"])
def test_a_scripted_model_ends_as_in_a_plain_run_without_the_bad_batch(kind: str, bad: bool) -> None:
    def run(*, guarded: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 1))
        if kind == "part":
            model = nn.Sequential(torch.jit.script(model[:2]), model[2:])
        else:
            model = torch.jit.script(model) if kind == "script" else torch.jit.trace(model, torch.zeros(8, 6))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        guard = sg.Guard(model, optimizer, loss_fn) if guarded else None
        for step in range(8):
            batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
            if bad and step in (3, 5):
                batch[2, 2] = float("nan")
                if not guarded:
                    continue
            if guard is not None:
                guard.step(batch)
            else:
                optimizer.zero_grad()
                loss_fn(model, batch).backward()
                optimizer.step()
        if guard is not None:
            guard.close()
            assert guard.summary()["skipped"] == (2 if bad else 0)
            assert not guard.summary()["guard_faults"]
        return [value.clone() for value in model.state_dict().values()]

    profiles = torch._C._jit_set_profiling_executor(False)  # it rounds otherwise once it has profiled
    try:
        assert all(torch.equal(a, b) for a, b in zip(run(guarded=True), run(guarded=False), strict=True))
    finally:
        torch._C._jit_set_profiling_executor(profiles)
