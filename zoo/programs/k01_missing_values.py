"""Tabular data with NaN for missing values, handled with an indicator; missing targets are masked."""
import hashlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Imputing(nn.Module):
    def __init__(self, d=9):
        super().__init__()
        self.default = nn.Parameter(torch.zeros(d))
        self.net = nn.Sequential(nn.Linear(2 * d, 48), nn.ReLU(), nn.BatchNorm1d(48), nn.Linear(48, 2))

    def forward(self, x):
        missing = torch.isnan(x)
        x = torch.where(missing, self.default, x)
        return self.net(torch.cat([x, missing.float()], -1))


def masked_mse(p, y):
    known = ~torch.isnan(y)
    if not known.any():
        return p.sum() * 0.0
    return (p[known] - y[known]).pow(2).mean()


def main():
    torch.manual_seed(0)
    x = torch.randn(1200, 9)
    y = torch.stack([x[:, 0] * 2 - x[:, 4], x[:, 1].abs()], -1)
    x[torch.rand_like(x) < 0.2] = float("nan")
    y[torch.rand_like(y) < 0.3] = float("nan")
    y[480:500] = float("nan")
    model = Imputing()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for xb, yb in DataLoader(TensorDataset(x, y), batch_size=20):
            loss = masked_mse(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} {loss.item():.4f} missing targets {torch.isnan(y).float().mean():.2f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
    print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in model.state_dict().values())).hexdigest())


main()
