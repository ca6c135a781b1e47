"""Multi-task regression where missing labels are NaN and are selected away before the loss."""
import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self):
        torch.manual_seed(4)
        g = torch.Generator().manual_seed(1)
        x = torch.randn(240, 9, generator=g)
        y = x @ torch.randn(9, 3, generator=g)
        y[torch.rand(240, 3, generator=g) < 0.4] = float("nan")
        x[torch.rand(240, 9, generator=g) < 0.1] = float("nan")
        self.loader = DataLoader(TensorDataset(x, y), 24, shuffle=True, generator=g)
        self.model = nn.Sequential(nn.Linear(18, 32), nn.ReLU(), nn.Linear(32, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.running = torch.full((3,), float("nan"))

    def impute(self, x):
        missing = torch.isnan(x)
        return torch.cat([torch.where(missing, torch.zeros_like(x), x), missing.float()], dim=1)

    def train_step(self, x, y):
        pred = self.model(self.impute(x))
        seen = ~torch.isnan(y)
        loss = (pred[seen] - y[seen]).square().mean()
        per_task = torch.nanmean((pred.detach() - y).square(), dim=0)
        self.running = torch.where(self.running.isnan(), per_task, 0.9 * self.running + 0.1 * per_task)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, epochs=3):
        for epoch in range(epochs):
            print(epoch, sum(self.train_step(x, y) for x, y in self.loader), self.running.tolist())
        state = self.model.state_dict()
        print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
        print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())


if __name__ == "__main__":
    Trainer().fit()
