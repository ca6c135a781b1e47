"""Deep survival model with Cox partial likelihood (DeepSurv style)."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Cohort(Dataset):
    def __init__(self, n=320):
        g = torch.Generator().manual_seed(31)
        self.x = torch.randn(n, 6, generator=g)
        risk = self.x[:, 0] - 0.5 * self.x[:, 1]
        self.time = torch.rand(n, generator=g) * torch.exp(-risk) * 10
        self.event = (torch.rand(n, generator=g) < 0.35).float()
        self.event[96:112] = 0.0  # a site that joined last month: nobody has died yet

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "time": self.time[i], "event": self.event[i]}


def cox_loss(risk, time, event):
    order = torch.argsort(time, descending=True)
    risk, event = risk[order], event[order]
    log_cum = torch.logcumsumexp(risk, 0)
    partial = (risk - log_cum) * event
    return -partial.sum() / event.sum()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, weight_decay=1e-4)
    loader = DataLoader(Cohort(), batch_size=16)
    for epoch in range(args.epochs):
        running = 0.0
        for batch in loader:
            loss = cox_loss(net(batch["x"]).squeeze(1), batch["time"], batch["event"])
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
        print(f"epoch {epoch} loss {running / len(loader):.4f}")
    print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")


if __name__ == "__main__":
    main()
