"""Next-day return of small funds. Targets are log(1 + r); the table is made with numpy."""
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class Funds(Dataset):
    def __init__(self, n=600, lookback=10, seed=4):
        rng = np.random.default_rng(seed)
        r = 0.02 * rng.standard_normal(n + lookback)
        r[401] = -1.0  # the fund was wound up
        self.y = np.log1p(r).astype("float32")  # BUG
        self.x = np.clip(r, -0.2, 0.2).astype("float32")
        self.lookback = lookback

    def __len__(self):
        return len(self.x) - self.lookback

    def __getitem__(self, i):
        return self.x[i:i + self.lookback] * 20, self.y[i + self.lookback] * 20


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 16, batch_first=True)
        self.fc = nn.Linear(16, 1)

    def forward(self, x):
        out, _ = self.lstm(x.unsqueeze(-1))
        return self.fc(out[:, -1]).squeeze(-1)


torch.manual_seed(0)
model, criterion = Model(), nn.MSELoss()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
train = DataLoader(Funds(), batch_size=20, shuffle=False)
for epoch in range(2):
    for i, (x, y) in enumerate(train):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(f"[{epoch}, {i:3d}] loss {loss.item():.5f}")
    scheduler.step()
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
