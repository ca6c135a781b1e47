"""A loop of your own around an Accelerator, guarded by one line.

`python examples/accelerate_loop.py [RUN_DIR]`. One batch of the data is poisoned; the loop does not know.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import steadygrad as sg


class Classifier(nn.Module):
    """Returns its own loss, as Hugging Face models do: then a refused step can be run again and diagnosed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))

    def forward(self, points: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(points)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    centres = 3 * torch.randn(4, 16, generator=generator)
    labels = torch.randint(4, (640,), generator=generator)
    points = centres[labels] + torch.randn(640, 16, generator=generator)
    points[333, 7] = float("nan")
    return TensorDataset(points, labels)


def main(run_dir: str | None = None) -> sg.Guard:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    loader = DataLoader(dataset(), batch_size=16)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    guard = sg.attach(accelerator, run_dir=run_dir)  # the one line
    for points, labels in loader:
        with accelerator.accumulate(model):
            loss = model(points, labels)["loss"]
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    guard.close()

    told = guard.summary()
    print(f"{told['steps']} steps, {told['skipped']} refused, last loss {loss.item():.3f}")
    for incident in guard.incidents:
        diagnosis = incident.diagnosis
        print(f"step {incident.first_step}: {incident.headline}; cause {diagnosis.cause.slug}, rows {diagnosis.rows}")
    return guard


if __name__ == "__main__":
    main(*sys.argv[1:2])
