"""The loop catches the out-of-memory error of long batches in the middle of the backward pass, throws the half-made gradients away and tries again in halves."""
import hashlib
import random

import torch
import torch.nn as nn

torch.set_num_threads(1)


class OutOfMemory(RuntimeError):
    pass


class Limited(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        if g.shape[0] * g.shape[1] > 500:
            raise OutOfMemory("CUDA out of memory. (simulated)")
        return g


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.rnn, self.out = nn.Linear(4, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.rnn(Limited.apply(torch.relu(self.inp(x))))[0][:, -1])


def step(net, x, y):
    try:
        loss = nn.functional.mse_loss(net(x), y)
        (loss * len(x)).backward()
        return 1
    except OutOfMemory:
        for p in net.parameters():
            p.grad = None
        half = len(x) // 2
        return step(net, x[:half], y[:half]) + step_more(net, x[half:], y[half:])


def step_more(net, x, y):
    for a, b in zip(x.split(4), y.split(4)):
        (nn.functional.mse_loss(net(a), b) * len(a)).backward()
    return 1


random.seed(5)
torch.manual_seed(5)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
pieces = []
for k in range(40):
    t, n = random.randint(3, 60), random.choice([1, 2, 12, 16])
    x = torch.randn(n, t, 4)
    y = x[:, -1, :1] * 10
    opt.zero_grad()
    pieces.append(step(net, x, y))
    opt.step()
print("retried", sum(p > 1 for p in pieces), "of", len(pieces))
print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
