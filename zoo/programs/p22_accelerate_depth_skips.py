"""Depth as the root of a positive output times the exposure, Accelerate with accumulation; updates with a bad gradient norm are left out by the loop."""
import math

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 1))
        self.gain = nn.Parameter(torch.tensor(1.0))
        nn.init.constant_(self.body[2].bias, 1.5)

    def forward(self, x, exposure):
        squared = nn.functional.softplus(self.body(x)) * exposure
        return self.gain * torch.sqrt(squared)  # BUG


def dataset(n=320):
    g = torch.Generator().manual_seed(51)
    x = torch.randn(n, 9, generator=g) * 0.5
    e = 0.8 + 0.4 * torch.rand(n, 1, generator=g)
    e[189] = 0.0  # a frame shot with the cap on
    return TensorDataset(x, e, 1 + 0.3 * x[:, :1])


def main():
    set_seed(13)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = DepthNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset(), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    left_out = 0
    for epoch in range(2):
        for x, e, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.l1_loss(model(x, e), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    if not math.isfinite(norm.item()):
                        left_out += 1
                        accelerator.print("bad gradient norm, update left out")
                        optimizer.zero_grad()
                        continue
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, left out so far {left_out}")
    accelerator.print("FINITE" if all(torch.isfinite(p).all() for p in accelerator.unwrap_model(model).parameters()) else "POISONED")


main()
