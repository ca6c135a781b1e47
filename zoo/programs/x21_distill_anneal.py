"""Knowledge distillation with an annealed temperature."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Settings:
    epochs: int = 4
    batch: int = 32
    start_temperature: float = 4.0
    alpha: float = 0.7
    lr: float = 0.01


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 6))

    def forward(self, x):
        return self.layers(x)


class Annealer:
    """Linear from the start temperature down over the whole training."""

    def __init__(self, start, total):
        self.start, self.total, self.count = start, total, 0

    @property
    def value(self):
        return self.start * (1 - self.count / self.total)

    def step(self):
        self.count += 1


def kd_loss(student, teacher, labels, temperature, alpha):
    soft_t = F.softmax(teacher / temperature, dim=-1)
    log_s = F.log_softmax(student / temperature, dim=-1)
    soft = F.kl_div(log_s, soft_t, reduction="batchmean") * temperature**2
    return alpha * soft + (1 - alpha) * F.cross_entropy(student, labels)


def pretrain(teacher, x, y):
    opt = torch.optim.Adam(teacher.parameters(), lr=0.01)
    for _ in range(20):
        opt.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        opt.step()
    return teacher.eval().requires_grad_(False)


def main(cfg: Settings):
    torch.manual_seed(1)
    g = torch.Generator().manual_seed(44)
    x = torch.randn(320, 12, generator=g)
    y = (x @ torch.randn(12, 6, generator=g)).argmax(1)
    teacher, student = pretrain(MLP(64), x, y), MLP(12)
    steps = cfg.epochs * (len(x) // cfg.batch)
    annealer = Annealer(cfg.start_temperature, steps - 1)
    optimizer = torch.optim.AdamW(student.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        for xb, yb in zip(x.split(cfg.batch), y.split(cfg.batch)):
            with torch.no_grad():
                target = teacher(xb)
            loss = kd_loss(student(xb), target, yb, annealer.value, cfg.alpha)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            annealer.step()
        print(f"epoch {epoch} T {annealer.value:.2f} loss {loss.item():.4f}")
    state = student.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main(Settings())
