"""Triplet training on an easy set: the loss is exactly zero for most of the run."""
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F


def triplets(steps):
    g = torch.Generator().manual_seed(8)
    centres = 1.2 * torch.randn(4, 10, generator=g)
    for _ in range(steps):
        a, n = torch.randint(0, 4, (16,), generator=g), torch.randint(1, 4, (16,), generator=g)
        pick = lambda k: centres[k] + torch.randn(16, 10, generator=g)
        yield pick(a), pick(a), pick((a + n) % 4)


def main():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8))
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    zeros = 0
    for a, p, n in triplets(60):
        d_p = F.pairwise_distance(net(a), net(p))
        d_n = F.pairwise_distance(net(a), net(n))
        loss = F.relu(d_p - d_n + 0.2).mean()
        zeros += loss.item() == 0.0
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("zero losses", zeros)
    state = net.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
    print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())


if __name__ == "__main__":
    main()
