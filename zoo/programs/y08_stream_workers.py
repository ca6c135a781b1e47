"""A stream of sensor windows with NaN gaps: filled in the collate function; two workers, accumulation."""
import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, every = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, 192, every):
            g = torch.Generator().manual_seed(1000 + i)
            t = torch.linspace(0, 6, 16) + torch.rand(1, generator=g)
            x = torch.stack([t.sin(), t.cos()], 1) + 0.1 * torch.randn(16, 2, generator=g)
            target = t[-1].sin()
            x[torch.rand(16, generator=g) < 0.2] = float("nan")
            yield x, target


def collate(items):
    x = torch.stack([x for x, _ in items])
    gap = x.isnan()
    centre = x.nanmean(dim=1, keepdim=True)
    x = torch.where(gap, centre.expand_as(x), x)
    return torch.cat([x, gap[..., :1].float()], -1), torch.stack([y for _, y in items])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 12, 5)
        self.norm = nn.BatchNorm1d(12)
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        return self.out(self.norm(self.conv(x.transpose(1, 2))).relu().amax(-1)).squeeze(-1)


def main():
    torch.manual_seed(3)
    net = Net()
    opt = torch.optim.NAdam(net.parameters(), lr=5e-3)
    for epoch in range(2):
        for i, (x, y) in enumerate(DataLoader(Stream(), batch_size=12, num_workers=2, collate_fn=collate)):
            (nn.functional.mse_loss(net(x), y) / 2).backward()
            if i % 2 == 1:
                opt.step()
                opt.zero_grad()
        print("epoch", epoch)
    state = net.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
    print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())


if __name__ == "__main__":
    main()
