"""The set-up of the three loops for `steady selftest`."""

import torch
from common import Trainer, batches


def make() -> tuple:
    """The trainer, its optimizer, the loss, and batches of which the sixth has an empty mask."""
    loader, model = list(batches()), Trainer()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), lambda model, batch: model(*batch), loader


def healthy() -> tuple:
    """The same, without the empty mask."""
    model, optimizer, loss_fn, loader = make()
    return model, optimizer, loss_fn, loader[6:]
