"""Gradients that are lost on their way through Python or a comparison: where, and what a repair would do."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 3), nn.Linear(3, 1)


class Data(Cut):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).data)  # cut


class Numpy(Cut):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.from_numpy(self.encoder(x).detach().numpy())  # cut
        return self.head(seen)


class Listed(Cut):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.tensor(self.encoder(x).tolist())  # cut
        return self.head(seen)


class LoggedFirst(Cut):
    """A detach for a log stands before the one that cuts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(x)
        self.log = hidden.detach().mean().item()
        return self.head(hidden.detach())  # cut


class Threshold(Cut):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.encoder(x) > 0).float())  # cut


class Gate(Cut):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.where(self.encoder(x) > 0, x[:, :3], x[:, 1:]))  # cut


class Places(Cut):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.encoder(x).sort(-1).indices  # cut
        return self.head(x.gather(1, places))


def run(model: nn.Module, run_case: Any, make_case: Any) -> Any:
    random = torch.Generator().manual_seed(2)
    batches = [(torch.randn(6, 4, generator=random), torch.randn(6, 1, generator=random)) for _ in range(6)]
    return run_case(
        make_case(model, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, torch.optim.Adam(model.parameters(), lr=1e-3))
    ).diagnosis


def marked_line(kind: type) -> str:
    lines, first = inspect.getsourcelines(kind)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if line.rstrip().endswith('# cut'))}"


@pytest.mark.parametrize(
    ("kind", "repair"),
    [
        (Data, "no_detach"),
        (Numpy, "no_detach"),
        (Listed, "no_detach"),
        (LoggedFirst, "no_detach"),
        (Threshold, "straight_through"),
        (Gate, "straight_through"),
        (Places, "straight_through"),
    ],
)
def test_the_line_that_loses_the_gradient_is_told_and_its_repair_tried(
    kind: type[nn.Module], repair: str, run_case: Any, make_case: Any
) -> None:
    torch.manual_seed(0)
    found = run(kind(), run_case, make_case)
    assert found.cause.slug == "no_trainable_grad"
    assert found.origin.module == "encoder"
    assert found.origin.source == marked_line(kind)
    assert [trial.remedy.slug for trial in found.remedies] == [repair]


def test_a_pass_without_gradients_beside_one_with_them_cuts_nothing_off(run_case: Any, make_case: Any) -> None:
    class Both(Cut):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = self.encoder(x)
            return self.head(self.encoder(x) - 0.1 * target)

    torch.manual_seed(0)
    assert run(Both(), run_case, make_case) is None
