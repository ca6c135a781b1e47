"""Two towers, symmetric InfoNCE plus a margin task, weighted by learned uncertainties (Kendall et al.)."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    steps: int = 60
    batch: int = 24
    dim: int = 12
    lr: float = 3e-3
    weight_lr: float = 2.5
    seed: int = 5


class Towers(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, cfg.dim))
        self.text = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, cfg.dim))
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, image, text):
        a = F.normalize(self.image(image), dim=-1)
        b = F.normalize(self.text(text), dim=-1)
        return a @ b.t()

    def combine(self, losses):
        precision = torch.exp(-self.log_var)
        return (precision * losses + self.log_var).sum()


def batches(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    to_image, to_text = torch.randn(8, 32, generator=g), torch.randn(8, 20, generator=g)
    while True:
        z = torch.randn(cfg.batch, 8, generator=g)
        yield z @ to_image, z @ to_text + 0.1 * torch.randn(cfg.batch, 20, generator=g)


def loss_of(logits):
    labels = torch.arange(len(logits))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def train(cfg):
    torch.manual_seed(cfg.seed)
    model = Towers(cfg)
    towers = [p for n, p in model.named_parameters() if n != "log_var"]
    optimizer = torch.optim.AdamW([{"params": towers, "lr": cfg.lr}, {"params": [model.log_var], "lr": cfg.weight_lr, "weight_decay": 0.0}])
    for step, (image, text) in zip(range(cfg.steps), batches(cfg)):
        cosine = model(image, text)
        margin = F.relu(-0.7 - cosine.diag()).mean()  # soon satisfied by all pairs
        loss = model.combine(torch.stack([loss_of(14.3 * cosine), margin]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step:3d} loss {loss.item():.4f} log variances {model.log_var.tolist()}")
    return model


if __name__ == "__main__":
    state = train(Config()).state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
