"""What the programs here share: a model with everything a forward can move, data with one poisoned window, bits.

None of these programs knows of steadygrad. Each trains twice, without and with the poisoned window, and prints which
parts of the two results differ.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.25), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)[:, 0]  # type: ignore[no-any-return]


def points(accumulate: int, poison: bool, windows: int = 6) -> Tensor:
    """Samples in order; with poison one more window, whose last batch holds a NaN."""
    generator = torch.Generator().manual_seed(5)
    data = torch.randn(windows * accumulate, BATCH, 3, generator=generator)
    if poison:
        bad = torch.randn(accumulate, BATCH, 3, generator=generator)
        bad[-1, 1, 2] = float("nan")
        data = torch.cat([data[: 3 * accumulate], bad, data[3 * accumulate :]])
    return data.reshape(-1, 3)


def state(model: nn.Module, optimizer: Any, schedule: Any) -> dict[str, Any]:
    found: dict[str, Any] = {f"model.{name}": value.clone() for name, value in model.state_dict().items()}
    for index, values in enumerate(optimizer.state.values()):
        found |= {f"optimizer.{index}.{k}": v.clone() for k, v in values.items() if isinstance(v, Tensor)}
    found["lr"] = [float(group["lr"]) for group in optimizer.param_groups]
    found["schedule"] = schedule.last_epoch
    return found


def differing(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    wrong = sorted(set(one) ^ set(two))
    for name in sorted(set(one) & set(two)):
        a, b = one[name], two[name]
        same = torch.equal(a, b) if isinstance(a, Tensor) else a == b
        wrong += [] if same else [name]
    return wrong


def compare(train: Any) -> None:
    """Train with accumulation 1 and 2, without and with poison, and print what differs."""
    torch.set_num_threads(1)
    told: dict[str, Any] = {}
    for accumulate in (1, 2):
        clean, poisoned = train(accumulate, False), train(accumulate, True)
        assert len(clean) > 10
        told[str(accumulate)] = differing(clean, poisoned)
        told["compared"] = len(clean)
    print("RESULT " + json.dumps(told))
