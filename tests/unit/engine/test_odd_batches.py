"""A batch may hold tensors that the multi-tensor kernels cannot read: it is judged and refused as any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg


class Spaced(Tensor):
    """Operations keep the class."""


def float8(points: Tensor) -> Any:
    return {"x": points, "odd": points.to(torch.float8_e5m2)}


ODD: dict[str, Callable[[Tensor], Any]] = {
    "jagged": lambda points: {"x": torch.nested.nested_tensor([points[:3], points[3:]], layout=torch.jagged)},
    "nested": lambda points: {"x": points, "odd": torch.nested.nested_tensor([points[:3], points[3:]])},
    "subclass": lambda points: {"x": points.as_subclass(Spaced)},
    "float8": float8,
    "csr": lambda points: {"x": points, "odd": points.to_sparse_csr()},
    "coo": lambda points: {"x": points, "odd": points.to_sparse()},
    "meta": lambda points: {"x": points, "odd": points.to("meta"), "name": "a", "none": None},
}


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    points = batch["x"].values() if batch["x"].is_nested else batch["x"].as_subclass(Tensor)
    return model(points).pow(2).mean()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("diagnose", ["off", "on"])
@pytest.mark.parametrize("kind", ODD)
def test_a_bad_batch_of_odd_tensors_is_refused_without_a_trace(kind: str, diagnose: str) -> None:
    def run(*, guarded: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        guard = sg.Guard(model, optimizer, loss_fn, **({} if diagnose == "on" else {"diagnose": "off"}))
        for step in range(8):
            points = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
            if step == 4:
                points[2, 1] = float("nan")
            if guarded:
                guard.step(ODD[kind](points))
            elif step != 4:
                optimizer.zero_grad()
                loss_fn(model, ODD[kind](points)).backward()
                optimizer.step()
        guard.close()
        if guarded:
            assert guard.summary()["skipped"] == 1
            assert guard.summary()["guard_faults"] == {}
            assert guard.incidents[0].findings[-1].code == "SY501" or "batch itself" in str(guard.incidents[0].findings)
        return [value.clone() for value in model.state_dict().values()]

    assert all(torch.equal(a, b) for a, b in zip(run(guarded=True), run(guarded=False), strict=True))
