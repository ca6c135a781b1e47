"""Small residual regressor with SGD and a one-cycle schedule."""
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {
    "epochs": 6,
    "batch_size": 25,
    "base_lr": 1e-3,
    "max_lr": 20.0,
    "momentum": 0.9,
}


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(50)
    x = torch.randn(500, 8, generator=g)
    y = x[:, :1] * x[:, 1:2] + 0.1 * torch.randn(500, 1, generator=g)
    loader = DataLoader(TensorDataset(x, y), CONFIG["batch_size"])
    model = nn.Sequential(nn.Linear(8, 16), Residual(16), Residual(16), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=CONFIG["base_lr"], momentum=CONFIG["momentum"])
    sched = OneCycleLR(opt, CONFIG["max_lr"], epochs=CONFIG["epochs"], steps_per_epoch=len(loader), cycle_momentum=False)
    for epoch in range(CONFIG["epochs"]):
        for xb, yb in loader:
            loss = nn.functional.mse_loss(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        print(epoch, loss.item(), sched.get_last_lr()[0])
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


main()
