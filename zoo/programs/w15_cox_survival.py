"""Cox proportional hazards with a neural risk score."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patients(Dataset):
    def __init__(self, n=1000):
        g = torch.Generator().manual_seed(41)
        self.x = torch.randn(n, 6, generator=g)
        risk = self.x[:, 0] - 0.5 * self.x[:, 1]
        self.time = torch.empty(n).exponential_(1.0, generator=g) * torch.exp(-risk)
        self.event = torch.rand(n, generator=g) < 0.7
        self.x[815] = torch.tensor([33.0, -22.0, 3.0, 2.0, -4.0, 5.0])  # lab values in other units
        self.time[815], self.event[815] = 1e-4, True

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.time[i], self.event[i]


def cox_loss(score, time, event):
    order = torch.argsort(time)
    score, event = score[order], event[order]
    hazard = torch.exp(score)
    gone = hazard.cumsum(0) - hazard
    at_risk = hazard.sum() - gone
    log_risk = torch.log(at_risk)
    return -((score - log_risk) * event).sum() / event.sum().clamp(min=1)


def main():
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    loader = DataLoader(Patients(), batch_size=25, shuffle=True)
    for epoch in range(2):
        for x, t, e in loader:
            loss = cox_loss(net(x).squeeze(-1), t, e)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} partial likelihood {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in net.state_dict().values()) else "POISONED")


main()
