"""Progressive resizing: image side and batch size change with the epoch, and a block is added to the net on the way."""
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1)])
        self.head = nn.Linear(8, 3)

    def grow(self):
        block = nn.Conv2d(8, 8, 3, padding=1)
        nn.init.zeros_(block.weight)
        self.blocks.append(block)
        return block

    def forward(self, x):
        x = F.relu(self.stem(x))
        for b in self.blocks:
            x = x + F.relu(b(x))
        return self.head(x.mean((2, 3)))


def images(n=180):
    g = torch.Generator().manual_seed(2)
    y = torch.randint(0, 3, (n,), generator=g)
    return torch.rand(n, 1, 16, 16, generator=g) + y[:, None, None, None] * 0.3, y


def main():
    torch.manual_seed(1)
    net, (x, y) = Net(), images()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch, (side, size) in enumerate([(4, 60), (8, 36), (8, 30), (16, 7)]):
        if epoch == 2:
            opt.add_param_group({"params": list(net.grow().parameters()), "lr": 0.02})
        xs = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
        for k in range(0, len(xs), size):
            loss = F.cross_entropy(net(xs[k:k + size]), y[k:k + size])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(epoch, side, size, round(loss.item(), 4))
    print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())


main()
