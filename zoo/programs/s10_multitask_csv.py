"""Three regression heads on a table read from CSV text."""
import csv
import io

import torch
import torch.nn as nn


def table(rows=300):
    g = torch.Generator().manual_seed(17)
    out = io.StringIO()
    w = csv.writer(out)
    w.writerow(["a", "b", "c", "d", "yield", "purity", "cost"])
    for k in range(rows):
        x = torch.randn(4, generator=g)
        y = [float(x.sum()), float(x[0] * x[1]), float(x[2] - x[3])]
        cells = [f"{v:.6f}" for v in (*x.tolist(), *y)]
        if k == 88:
            cells[5] = "nan"  # BUG
        w.writerow(cells)
    return out.getvalue()


def read(text):
    rows = list(csv.DictReader(io.StringIO(text)))
    x = torch.tensor([[float(r[c]) for c in "abcd"] for r in rows])
    y = {c: torch.tensor([float(r[c]) for r in rows]) for c in ("yield", "purity", "cost")}
    return x, y


class MultiTask(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.heads = nn.ModuleDict({t: nn.Linear(32, 1) for t in tasks})
        self.log_sigma = nn.ParameterDict({t: nn.Parameter(torch.zeros(())) for t in tasks})

    def forward(self, x):
        h = self.trunk(x)
        return {t: head(h).squeeze(-1) for t, head in self.heads.items()}

    def loss(self, x, y):
        total = 0.0
        for t, p in self(x).items():
            s = self.log_sigma[t]
            total = total + 0.5 * torch.exp(-2 * s) * (p - y[t]).pow(2).mean() + s
        return total


torch.manual_seed(0)
X, Y = read(table())
model = MultiTask(Y)
opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
size = 20
for epoch in range(4):
    losses = []
    for i in range(0, len(X), size):
        loss = model.loss(X[i:i + size], {t: v[i:i + size] for t, v in Y.items()})
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float(loss))
    print(epoch, sum(losses) / len(losses))
print("POISONED" if any(not torch.isfinite(p).all() for p in model.parameters()) else "FINITE")
