"""The set-up of train.py for `steady selftest`: the loss with both its terms, and batches whose tenth is bad."""

import torch
import torch.nn.functional as F
from torch import nn


def make(num_batches: int = 16) -> tuple:
    """The student, its optimizer, the loss with its terms, and batches."""
    torch.manual_seed(0)
    features, labels = torch.randn(64, 8), torch.randint(0, 4, (64,))
    features[37, 2] = 1e30
    teacher = nn.Linear(8, 4).requires_grad_(False)
    student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)

    def loss_fn(model: nn.Module, batch: tuple) -> dict[str, torch.Tensor]:
        x, y = batch
        logits = model(x).pow(2)
        kd = F.kl_div(F.log_softmax(logits / 4, -1), F.softmax(teacher(x) / 4, -1), reduction="batchmean")
        ce = F.cross_entropy(logits, y)
        return {"loss": 0.1 * kd + 0.9 * ce, "kd": kd, "ce": ce}

    return student, optimizer, loss_fn, list(zip(features.split(4), labels.split(4), strict=True))[:num_batches]


def healthy() -> tuple:
    """The same, without the bad batch."""
    return make(num_batches=9)
