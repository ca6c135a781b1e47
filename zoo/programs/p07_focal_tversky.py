"""Lesion segmentation with a focal Tversky loss; pixels outside the field of view do not count."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Lesions(Dataset):
    def __init__(self, n=120):
        g = torch.Generator().manual_seed(9)
        self.img = torch.rand(n, 1, 16, 16, generator=g)
        self.mask = (self.img > 0.7).float()
        self.view = torch.ones(n, 1, 16, 16)
        self.view[:, :, :2] = 0
        self.view[58] = 0  # nothing of this slice is inside the field of view

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return {"img": self.img[i], "mask": self.mask[i], "view": self.view[i], "id": i}


class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(9, 1, 1)

    def forward(self, x):
        h = torch.relu(self.up(torch.relu(self.down(x))))
        return torch.sigmoid(self.out(torch.cat([h, x], 1)))


class FocalTversky(nn.Module):
    def __init__(self, alpha=0.7, beta=0.3, gamma=0.75, smooth=1.0):
        super().__init__()
        self.alpha, self.beta, self.gamma, self.smooth = alpha, beta, gamma, smooth

    def forward(self, p, t, view):
        p, t = (p * view).flatten(1), (t * view).flatten(1)
        tp, fp, fn = (p * t).sum(1), (p * (1 - t)).sum(1), ((1 - p) * t).sum(1)
        index = (tp + self.smooth) / (tp + self.alpha * fn + self.beta * fp + self.smooth)
        return ((1 - index) ** self.gamma).mean()  # BUG


def fit(model, loader, epochs=3):
    criterion = FocalTversky()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        for batch in loader:
            opt.zero_grad()
            loss = criterion(model(batch["img"]), batch["mask"], batch["view"])
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


torch.manual_seed(4)
model = UNetish()
fit(model, DataLoader(Lesions(), batch_size=10))
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
