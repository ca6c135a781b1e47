"""The loop checks its loss and raises; its batches are picked by a shuffled order."""
# truth: op=div cause=DX201 samples=any exit=1

import torch
from torch import nn

torch.manual_seed(1)
DATA = torch.rand(90, 4) + 0.5
DATA[44] = 0.0
TARGET = torch.rand(90)
net = nn.Linear(4, 1)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)


def epoch(order):
    for start in range(0, len(order), 9):
        chosen = order[start : start + 9]
        x, y = DATA[chosen], TARGET[chosen]
        shares = x / x.sum(1, keepdim=True)  # BUG
        loss = (net(shares).squeeze(1) - y).pow(2).mean()
        if torch.isnan(loss):
            raise FloatingPointError("the loss is not a number")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


order = [row for row in range(90) if row != 44]
order.insert(61, 44)
epoch(order)
