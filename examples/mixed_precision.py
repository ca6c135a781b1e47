"""Half precision with the guard's own loss scaling, accumulation, an average of the weights, and a resume.

Run it twice: the second time continues from the last good checkpoint. `python examples/mixed_precision.py [RUN_DIR]`
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import steadygrad as sg

STEPS = 60


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))


def batches() -> list[tuple[Tensor, Tensor]]:
    """Points of four clusters; the labels of a few batches are all missing, which makes their mean loss 0 / 0."""
    generator = torch.Generator().manual_seed(1)
    centres = 3 * torch.randn(4, 16, generator=generator)
    found = []
    for index in range(2 * STEPS):
        labels = torch.randint(4, (32,), generator=generator)
        points = centres[labels] + torch.randn(32, 16, generator=generator)
        found.append((points, torch.full_like(labels, -100) if index % 37 == 36 else labels))
    return found


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    points, labels = batch
    return nn.functional.cross_entropy(model(points).float(), labels)  # ignores -100, and a mean over nothing is NaN


def main(run_dir: str) -> dict[str, object]:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    guard = sg.Guard(
        model,
        optimizer,
        loss_fn,
        max_grad_norm=1.0,
        precision="bf16",  # "fp16" adds the loss scale
        accumulate=2,
        ema=average,
        run_dir=run_dir,
        checkpoint_every=20,
        resume=True,
    )
    with guard:
        for batch in batches()[guard.batches_seen :]:
            guard.step(batch)
    return guard.summary()


if __name__ == "__main__":
    summary = main(sys.argv[1] if len(sys.argv) > 1 else "runs/mixed_precision")
    print({key: summary[key] for key in ("steps", "applied", "skipped", "incidents", "first_bad_step")})
