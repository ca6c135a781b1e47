"""Optimizer state in half precision that rounds to zero is diagnosed, and state in float32 is tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import steadygrad as sg


class ShortAdam(torch.optim.Optimizer):
    """Adam that computes in float32 and keeps its moments in `dtype`."""

    def __init__(self, parameters: Any, dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": 1e-9, "eps": 1e-8})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update({key: torch.zeros_like(p, dtype=self.dtype) for key in ("exp_avg", "exp_avg_sq")})
                state["exp_avg"].copy_(state["exp_avg"].float().lerp(p.grad, 0.1))
                state["exp_avg_sq"].copy_(state["exp_avg_sq"].float().lerp(p.grad**2, 0.001))
                p.addcdiv_(
                    state["exp_avg"].float(), state["exp_avg_sq"].float().sqrt() + group["eps"], value=-group["lr"]
                )


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 1e-3), (torch.float16, 1e2), (torch.float32, 1e-3)])
def test_moments_that_round_to_zero_are_a_diagnosis_and_others_are_none(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    random = torch.Generator().manual_seed(0)
    with sg.Guard(model, ShortAdam(model.parameters(), dtype), lambda m, b: (m(b) - 1).pow(2).mean() * scale) as guard:
        for _ in range(12):
            guard.step(torch.randn(16, 8, generator=random))
    causes = [i.diagnosis.cause.slug for i in guard.incidents if i.diagnosis is not None and i.diagnosis.cause]
    if dtype is torch.float32 or scale > 1:
        assert "fp16_underflow" not in causes
        return
    assert causes == ["fp16_underflow"]
    diagnosis = guard.incidents[0].diagnosis
    assert diagnosis is not None
    assert diagnosis.phase == "state"
    assert "fp32_state" in {trial.remedy.slug for trial in diagnosis.trials if trial.verified}
