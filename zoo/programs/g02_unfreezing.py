"""Transfer learning: the head first, then block after block is unfrozen and gets its own parameter group."""
import hashlib

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.block1 = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.block2(self.block1(torch.relu(self.stem(x)))).mean((2, 3)))


def data():
    g = torch.Generator().manual_seed(5)
    y = torch.randint(0, 3, (300,), generator=g)
    x = torch.randn(300, 1, 10, 10, generator=g) * 0.5
    for i, c in enumerate(y.tolist()):
        x[i, 0, 3 * c:3 * c + 3] += 1.0
    return TensorDataset(x, y)


def main():
    torch.manual_seed(1)
    net = Backbone()
    net.requires_grad_(False)
    net.head.requires_grad_(True)
    opt = torch.optim.Adam(net.head.parameters(), lr=1e-2)
    plan = {1: net.block2, 2: net.block1, 3: net.stem}
    loader = DataLoader(data(), batch_size=30, shuffle=True, generator=torch.Generator().manual_seed(3))
    for epoch in range(5):
        if epoch in plan:
            plan[epoch].requires_grad_(True)
            opt.add_param_group({"params": list(plan[epoch].parameters()), "lr": 3e-3})
        total = 0.0
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}, {sum(p.requires_grad for p in net.parameters())} tensors train")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())


main()
