"""A norm with eps=1e-8 in float16: the eps is zero there, and so is the divisor for a silent row."""
# ruff: noqa: B007
# truth: op=div cause=DX102|DX201 samples=11

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-8):
        super().__init__()
        self.g, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        rms = x.abs().mean(-1, keepdim=True)
        return x / (rms + self.eps) * self.g  # BUG


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RMSNorm(8)
        self.fc = nn.Linear(8, 1)

    def forward(self, x):
        return self.fc(self.norm(x))


def main():
    torch.manual_seed(0)
    X, Y = torch.randn(40, 8), torch.randn(40, 1)
    X[11] = 0
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(2):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = net(x.half())
                loss = ((out.float() - y) ** 2).mean()
            loss.backward()
            optimizer.step()
    print("weights finite:", all(p.isfinite().all().item() for p in net.parameters()))


main()
