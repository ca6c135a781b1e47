"""A safe square root that is not: where() discards the value and not its gradient. Loader with workers."""
# truth: op=sqrt cause=DX303|DX301 samples=9

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(8)
        self.left, self.right = torch.randn(40, 4, generator=g), torch.randn(40, 4, generator=g)
        self.right[9] = self.left[9]

    def __len__(self):
        return len(self.left)

    def __getitem__(self, i):
        return {"left": self.left[i], "right": self.right[i]}


def progress(iterable, every=4):
    for n, item in enumerate(iterable):
        if n % every == 0:
            print("batch", n)
        yield item


def main():
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    loader = DataLoader(Pairs(), batch_size=5, shuffle=True, num_workers=2)
    for batch in progress(loader):
        left, right = net(batch["left"]), net(batch["right"])
        d2 = ((left - right) ** 2).sum(-1)
        d = torch.where(d2 > 0, torch.sqrt(d2), torch.zeros_like(d2))  # BUG
        loss = torch.relu(1.0 - d).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("weights finite:", all(p.isfinite().all().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
