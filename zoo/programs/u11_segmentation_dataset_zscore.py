"""Segmentation of scans; the dataset standardises every scan, in numpy, when it is asked for one."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, n=96):
        rng = np.random.default_rng(17)
        self.scans = rng.gamma(2.0, 20.0, (n, 16, 16)).astype(np.float32)
        self.scans[61] = 7.0  # shutter closed
        self.masks = (self.scans > 40).astype(np.int64)

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, i):
        scan = self.scans[i]
        scan = (scan - scan.mean()) / scan.std()
        return torch.from_numpy(scan)[None], torch.from_numpy(self.masks[i])


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.d1 = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())
        self.d2 = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(c, 2 * c, 3, padding=1), nn.BatchNorm2d(2 * c), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.out = nn.Conv2d(2 * c, 2, 1)

    def forward(self, x):
        a = self.d1(x)
        return self.out(torch.cat([a, self.up(self.d2(a))], 1))


def dice(logits, mask):
    p = logits.softmax(1)[:, 1]
    return 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)


if __name__ == "__main__":
    torch.manual_seed(9)
    net = UNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    loader = DataLoader(Scans(), batch_size=8, shuffle=True, drop_last=True)
    for epoch in range(3):
        for image, mask in loader:
            logits = net(image)
            loss = nn.functional.cross_entropy(logits, mask) + dice(logits, mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, float(loss))
    print("FINITE" if all(torch.isfinite(t).all() for t in net.state_dict().values()) else "POISONED")
