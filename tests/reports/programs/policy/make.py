"""The set-up of train.py for `steady selftest`: a batch is a step's number and its prompts."""

import torch
from torch import nn


def make(steps: range = range(12)) -> tuple:
    """The policy, its optimizer, its loss, and batches of which the sixth has equal rewards."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 8))
    sampled = torch.randint(0, 8, (64, 8))

    def loss_fn(model: nn.Module, batch: tuple) -> torch.Tensor:
        step, prompts = batch
        tokens = sampled[step]
        rewards = torch.ones(8) if step == 5 else (tokens % 2).float() + torch.arange(8) / 8
        advantages = (rewards - rewards.mean()) / rewards.std()
        chosen = torch.log_softmax(model(prompts), -1).gather(-1, tokens[:, None]).squeeze(-1)
        return -(advantages * chosen).mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, loss_fn, [(step, torch.arange(8)) for step in steps]


def healthy() -> tuple:
    """The same, without equal rewards."""
    return make(range(6, 18))
