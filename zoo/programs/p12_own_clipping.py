"""Hinge classifier in a hand-made Trainer class; gradients are scaled to a fixed length before the step."""
import torch
import torch.nn as nn


def scale_gradients(params, length):
    params = [p for p in params if p.grad is not None]
    total = torch.sqrt(sum((p.grad ** 2).sum() for p in params))
    factor = length / total  # BUG
    for p in params:
        p.grad.mul_(factor)
    return total


class Trainer:
    def __init__(self, model, data, lr=0.02, length=0.5):
        self.model, self.data, self.length = model, data, length
        self.opt = torch.optim.SGD(model.parameters(), lr=lr)
        self.step_count = 0
        self.norms = []

    def loss(self, batch):
        x, y = batch
        return torch.clamp(1 - y * self.model(x).squeeze(1), min=0).mean()

    def training_step(self, batch):
        self.opt.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.norms.append(float(scale_gradients(self.model.parameters(), self.length)))
        self.opt.step()
        self.step_count += 1
        return float(loss)

    def fit(self, epochs):
        for e in range(epochs):
            losses = [self.training_step(b) for b in self.data]
            print(f"epoch {e}: loss {sum(losses) / len(losses):.4f}, smallest norm {min(self.norms[-len(self.data):]):.3g}")


def batches(n=12, size=16):
    g = torch.Generator().manual_seed(15)
    out = []
    for k in range(n):
        y = torch.randint(0, 2, (size,), generator=g) * 2.0 - 1
        x = torch.randn(size, 4, generator=g) * 0.3 + y[:, None] * (6.0 if k == 9 else 0.4)
        out.append((x, y))
    return out


torch.manual_seed(0)
trainer = Trainer(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), batches())
with torch.no_grad():
    trainer.model[2].weight.mul_(2)
trainer.fit(8)
print("steps", trainer.step_count)
print("FINITE" if all(torch.isfinite(p).all() for p in trainer.model.parameters()) else "POISONED")
