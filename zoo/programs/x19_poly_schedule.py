"""Depth regression with the polynomial schedule of DeepLab, resumed past its planned end."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

MAX_ITERS = 30
BASE_LR = 0.02
POWER = 0.9


class DepthNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, c, 3, padding=1)
        self.bn = nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x):
        return F.softplus(self.conv2(F.relu(self.bn(self.conv1(x)))))


def poly(iteration):
    progress = np.float64(iteration) / MAX_ITERS
    return (1 - progress) ** POWER


def adjust_lr(optimizer, iteration):
    lr = BASE_LR * poly(iteration)
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def silog(pred, target):
    d = torch.log(pred + 1e-6) - torch.log(target)
    return (d.pow(2).mean() - 0.5 * d.mean().pow(2)).clamp(min=1e-8).sqrt()


def main(epochs=3):
    np.seterr(all="ignore")
    torch.manual_seed(5)
    g = torch.Generator().manual_seed(55)
    images = torch.rand(88, 3, 10, 10, generator=g)
    depth = 0.5 + images.mean(1, keepdim=True) * 4
    loader = DataLoader(TensorDataset(images, depth), batch_size=8, shuffle=True, generator=g)
    net = DepthNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=BASE_LR, momentum=0.9, weight_decay=1e-4)
    iteration = 0
    for epoch in range(epochs):
        for image, target in loader:
            lr = adjust_lr(optimizer, iteration)
            loss = silog(net(image), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            iteration += 1
        print(f"epoch {epoch} iteration {iteration} lr {lr:.5f} loss {loss.item():.4f}")
    state = net.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
