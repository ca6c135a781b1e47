"""Modules of others that a loss uses are left as they are where the loss is run again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steadygrad as sg
from steadygrad.engine.recovery.loss_modules import buffers_beside
from steadygrad.records.rerun_flag import rerun


def made_critic() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


CRITIC = made_critic()


def by_closure(critic: nn.Module) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda maker, noise: -critic(maker(noise)).mean()


def by_argument(maker: nn.Module, noise: Tensor, critic: Any = None) -> Tensor:
    return -critic(maker(noise)).mean()


def by_global(maker: nn.Module, noise: Tensor) -> Tensor:
    return -CRITIC(maker(noise)).mean()


class Player:
    def __init__(self, critic: nn.Module) -> None:
        self.critic = critic

    def loss(self, maker: nn.Module, noise: Tensor) -> Tensor:
        return -self.critic(maker(noise)).mean()


@pytest.mark.parametrize("way", ["closure", "argument", "global", "method"])
def test_buffers_of_another_model_move_in_training_and_not_in_a_rerun(way: str) -> None:
    critic = CRITIC if way == "global" else made_critic()
    loss: Any = {
        "closure": by_closure(critic),
        "argument": partial(by_argument, critic=critic),
        "global": by_global,
        "method": Player(critic).loss,
    }[way]
    maker = nn.Linear(4, 2)
    assert {id(b) for b in buffers_beside(loss, maker)} >= {id(b) for b in critic.buffers()}
    with sg.Guard(maker, torch.optim.SGD(maker.parameters(), lr=0.01), loss) as guard:
        before = int(critic[1].num_batches_tracked)
        guard.step(torch.randn(6, 4))
        assert int(critic[1].num_batches_tracked) == before + 1
        kept = {name: value.clone() for name, value in critic.state_dict().items()}
        with rerun():
            guard._loop.program.forward(torch.randn(6, 4))
        assert all(torch.equal(value, kept[name]) for name, value in critic.state_dict().items())


def test_the_models_own_buffers_are_not_among_them() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
    assert buffers_beside(lambda model, batch: model(batch).mean(), model) == []


def test_a_step_beside_a_rerun_in_another_thread_moves_the_other_models_buffers() -> None:
    critic = made_critic()
    maker = nn.Linear(4, 2)
    with sg.Guard(maker, torch.optim.SGD(maker.parameters(), lr=0.01), by_closure(critic)) as guard:
        before = int(critic[1].num_batches_tracked)
        with rerun():  # the flag is the process's: a look elsewhere raises it for this step too
            guard.step(torch.randn(6, 4))
        assert int(critic[1].num_batches_tracked) == before + 1
