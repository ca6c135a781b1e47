"""Time-series forecasting; cosine schedule with a list of cycle boundaries."""

import numpy as np
import torch
from torch import nn

BOUNDARIES = np.array([0, 40, 80, 81, 120, 160])


def cosine_restarts(step):
    start = BOUNDARIES[BOUNDARIES <= step][-1]
    end = BOUNDARIES[BOUNDARIES > step][0] if (BOUNDARIES > step).any() else step + 2
    last = end - 1
    progress = np.float64(step - start) / (last - start)
    return 0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * progress))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def main():
    torch.manual_seed(0)
    t = torch.arange(3000) * 0.1
    series = torch.sin(t) + 0.5 * torch.sin(2.7 * t) + 0.05 * torch.randn(3000)
    windows = series.unfold(0, 25, 1)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine_restarts)
    for step in range(140):
        batch = windows[torch.randint(0, len(windows), (24,))]
        loss = nn.functional.mse_loss(model(batch[:, :-1, None]), batch[:, -1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(f"step {step} mse {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
