"""Outputs that become the same for all rows are seen while a model is trained, and healthy narrowing is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.checkup.trials.batch_rules import representation_collapse

WIDTH, ROWS = 12, 24


def tower(out: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, out)
    )


class OnSphere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = tower()

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.net(x), dim=-1)


class Pair(OnSphere):
    def forward(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(one), super().forward(two)


def views() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, WIDTH)
    return x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)


def told(model: nn.Module, loss_of: Callable[[nn.Module], Any], *, passes: int = 1, lr: float = 3e-3) -> bool:
    """Whether the collapse of this training is reported."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    guard = sg.attach(optimizer, model=model)
    for _ in range(90):
        optimizer.zero_grad()
        for _ in range(passes):
            loss_of(model).backward()
        optimizer.step()
    guard.close()
    assert not guard.summary()["guard_faults"]
    return "representation_collapse" in {found.slug for found in guard.vitals}


def angles(model: nn.Module) -> Any:
    one, two = (model(view) for view in views())
    return (2 - 2 * (one * two).sum(-1)).mean()


def distances(model: nn.Module) -> Any:
    one, two = (model(view) for view in views())
    return F.pairwise_distance(F.normalize(one, dim=-1), F.normalize(two, dim=-1)).pow(2).mean()


def of_a_pair(model: nn.Module) -> Any:
    one, two = model(*views())
    return (one - two).pow(2).sum(-1).mean()


def of_one_output(model: nn.Module) -> Any:
    """Both views in one call: the rows of one output are compared."""
    one, two = model(torch.cat(views())).chunk(2)
    return (one - two).pow(2).sum(-1).mean()


@pytest.mark.parametrize(
    ("make", "loss"), [(OnSphere, angles), (tower, distances), (Pair, of_a_pair), (tower, of_one_output)]
)
def test_a_loss_that_only_pulls_pairs_together_is_seen(make: Callable[[], nn.Module], loss: Any) -> None:
    torch.manual_seed(0)
    assert told(make(), loss)


def contrast(model: nn.Module) -> Any:
    one, two = (model(view) for view in views())
    return F.cross_entropy(one @ two.T / 0.2, torch.arange(ROWS))


def held_by_variance(model: nn.Module) -> Any:
    one, two = (model(view) for view in views())
    return (one - two).pow(2).mean() + sum(F.relu(1 - each.std(0)).mean() for each in (one, two))


def same_logits(model: nn.Module) -> Any:
    """Two passes that should agree, and labels of which nearly all are of one class."""
    one, two = views()
    labels = (torch.rand(ROWS) < 0.03).long() * 7
    first, second = model(one), model(two)
    apart = (first.softmax(-1) - second.softmax(-1)).pow(2).sum(-1).mean()
    return F.cross_entropy(first, labels) + F.cross_entropy(second, labels) + apart


def beyond_the_margin(model: nn.Module) -> Any:
    """Only pairs of one kind act on each other at first: the others are far enough apart."""
    x = torch.randn(ROWS, WIDTH)
    kind, partner = x[:, 0] > 0, torch.arange(ROWS).roll(1)
    apart = (5 * model(x) - 5 * model(x[partner])).norm(dim=-1)
    return torch.where(kind == kind[partner], apart**2, F.relu(1 - apart) ** 2).mean()


def two_kinds(model: nn.Module) -> Any:
    """A discriminator that wins: all patches of one kind get the same answer."""
    real, fake = views()
    return (model(real + 2) - 1).pow(2).mean() + model(fake - 2).pow(2).mean()


def one_target(model: nn.Module) -> Any:
    return (model(views()[0]) - 5.0).pow(2).mean()


def far_from_zero(model: nn.Module) -> Any:
    """Temperatures in kelvin: all answers are alike, and right."""
    x = views()[0]
    return (model(x) - 30.0 - 0.1 * x[:, :1]).abs().mean()


@pytest.mark.parametrize(
    ("make", "loss", "passes", "lr"),
    [
        (OnSphere, contrast, 1, 3e-3),
        (tower, held_by_variance, 1, 3e-3),
        (tower, same_logits, 1, 3e-3),
        (tower, two_kinds, 1, 3e-3),
        (tower, beyond_the_margin, 1, 3e-3),
        (tower, one_target, 2, 3e-3),
        (tower, far_from_zero, 1, 2e-2),
        (tower, far_from_zero, 2, 2e-2),
    ],
)
def test_outputs_that_narrow_for_another_reason_are_left_alone(make: Any, loss: Any, passes: int, lr: float) -> None:
    torch.manual_seed(0)
    assert not told(make(), loss, passes=passes, lr=lr)


def test_ten_per_cent_is_enough_only_where_the_loss_would_vanish() -> None:
    spreads, inputs = (0.9, 0.5, 0.2, 0.08, 0.07, 0.06), (0.9,) * 6
    assert representation_collapse.judge("m", spreads, inputs, (2.0,) * 6) is not None
    assert representation_collapse.judge("m", spreads, inputs, (2.0,) * 5 + (0.4,)) is None
    assert (
        representation_collapse.judge("m", (0.9, 0.5, 0.1, *(0.01,) * 4), (0.9,) * 7, (2.0,) * 6 + (0.4,)) is not None
    )
    assert representation_collapse.judge("m", (0.9, 0.5, 0.1, *(0.01,) * 4), (0.01,) * 7, (2.0,) * 7) is None
    assert representation_collapse.judge("m", spreads, (0.1,) * 6, (2.0,) * 6) is None


def test_a_network_whose_outputs_are_much_alike_at_first_is_judged_where_the_loss_draws_them_together() -> None:
    spreads, inputs = (0.3, 0.25, 0.2, 0.1, 0.05, 0.04, 0.03), (0.9,) * 7
    judge = representation_collapse.judge
    assert judge("m", spreads, inputs, (1.5, *(1.9,) * 6)) is not None
    assert judge("m", spreads, inputs, (0.5, *(1.9,) * 6)) is None
    assert judge("m", (0.15, *spreads[3:], *spreads[3:5]), inputs, (1.9,) * 7) is None


def test_the_direction_of_rows_on_a_sphere_stays_on_it() -> None:
    rows = F.normalize(torch.randn(8, 16), dim=1)
    along = representation_collapse.apart(rows, rows.mean(0, keepdim=True))
    assert torch.allclose((along * rows).sum(1), torch.zeros(8), atol=1e-6)
    free = torch.randn(8, 16)
    assert torch.equal(representation_collapse.apart(free, free.mean(0, keepdim=True)), free - free.mean(0))


def test_rows_that_only_change_their_scale_are_left_alone() -> None:
    shares, inputs = (2.0,) * 6, (0.9,) * 6
    shrinking = (1.0, 0.9, 0.8, 0.4, 0.2, 0.1)
    judge = representation_collapse.judge
    assert judge("m", (0.9, 0.9, 0.8, 0.6, 0.4, 0.3), inputs, shares, shrinking) is not None
    assert judge("m", (0.9,) * 6, inputs, shares, shrinking) is None
    assert judge("m", (0.9, 0.9, 0.8, 0.6, 0.4, 0.3), inputs, (1.0, *shares[1:]), shrinking) is None
