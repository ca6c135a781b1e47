"""Two stages: the first writes a small checkpoint (in half, to save room), the second goes on from it."""
import os
import tempfile

import torch
import torch.nn as nn


class EventNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seconds", torch.tensor([60.0, 3600.0, 86400.0, 604800.0]))
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, kind, ago):
        share = ago[:, None] * self.seconds / (ago[:, None] * self.seconds + 5000.0)
        return self.body(torch.cat([kind, share], 1)).squeeze(1)


def save(model, path):
    torch.save({k: v.half() for k, v in model.state_dict().items()}, path)  # BUG


def stage(model, steps, lr, g, name):
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    for s in range(steps):
        kind, ago = torch.randn(16, 4, generator=g), torch.rand(16, generator=g)
        target = kind.sum(1) * 0.3 + ago
        loss = ((model(kind, ago) - target) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 10 == 9:
            print(name, s + 1, round(loss.item(), 4))


def main():
    g = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "stage1.pt")
        first = EventNet()
        stage(first, 30, 3e-3, g, "stage 1")
        save(first, path)
        second = EventNet()
        second.load_state_dict({k: v.float() for k, v in torch.load(path).items()})
    stage(second, 30, 1e-3, g, "stage 2")
    print("FINITE" if all(torch.isfinite(p).all() for p in second.parameters()) else "POISONED")


main()
