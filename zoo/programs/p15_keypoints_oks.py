"""Keypoints with a loss on object keypoint similarity. The losses come back as a dict."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIGMA = torch.tensor([0.25, 0.35, 0.5, 0.35, 0.25])


class People(Dataset):
    def __init__(self, n=180):
        g = torch.Generator().manual_seed(40)
        self.feat = torch.randn(n, 12, generator=g)
        self.kpt = torch.tanh(self.feat @ torch.randn(12, 10, generator=g) * 0.2).view(n, 5, 2)
        self.area = 0.5 + torch.rand(n, generator=g)
        self.area[110] = 0.0  # a person cut off by the border
        self.visible = (torch.rand(n, 5, generator=g) < 0.8).float()

    def __len__(self):
        return len(self.feat)

    def __getitem__(self, i):
        return self.feat[i], {"kpt": self.kpt[i], "area": self.area[i], "visible": self.visible[i]}


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.kpt, self.vis = nn.Linear(32, 10), nn.Linear(32, 5)

    def forward(self, x):
        h = self.trunk(x)
        return self.kpt(h).view(-1, 5, 2), self.vis(h)


class KeypointLoss:
    def __call__(self, out, target):
        kpt, vis = out
        d2 = ((kpt - target["kpt"]) ** 2).sum(-1)
        e = d2 / (2 * target["area"][:, None] * (2 * SIGMA) ** 2)  # BUG
        oks = torch.exp(-e)
        return {
            "oks": ((1 - oks) * target["visible"]).sum(1).mean(),
            "vis": nn.functional.binary_cross_entropy_with_logits(vis, target["visible"]),
        }


def main():
    torch.manual_seed(14)
    model, criterion = Head(), KeypointLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(People(), batch_size=12)
    for epoch in range(3):
        for x, target in loader:
            losses = criterion(model(x), target)
            total = sum(losses.values())
            opt.zero_grad()
            total.backward()
            opt.step()
        print("epoch", epoch, {k: round(v.item(), 4) for k, v in losses.items()})
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


if __name__ == "__main__":
    main()
