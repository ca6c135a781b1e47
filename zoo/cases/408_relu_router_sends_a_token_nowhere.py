"""A mixture of experts with a ReLU router whose gates are normalised by their sum: a token that no expert wants gives 0/0.
Activations are sequence first."""
import torch
import torch.nn as nn
from torch.nn import functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="408_relu_router_sends_a_token_nowhere", source="https://arxiv.org/abs/2412.14711 (ReMoE): gates can all be zero",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="blocks.1.router", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[0], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class Router(nn.Module):
    fix = None

    def __init__(self, d, n):
        super().__init__()
        self.gate = nn.Linear(d, n)

    def normalise(self, g):
        total = g.sum(-1, keepdim=True)
        if self.fix == "eps":
            total = total + 1e-6
        elif self.fix == "clamp":
            total = total.clamp_min(1e-6)
        return g / total  # <-- origin

    def forward(self, x):
        return self.normalise(F.relu(self.gate(x)))


class MoE(nn.Module):
    def __init__(self, d, n=4):
        super().__init__()
        self.router = Router(d, n)
        self.up = nn.Parameter(torch.randn(n, d, 2 * d) * 0.2)
        self.down = nn.Parameter(torch.randn(n, 2 * d, d) * 0.2)

    def forward(self, x):
        w = self.router(x)
        h = torch.einsum("tbd,edf->tbef", x, self.up).relu()
        return x + torch.einsum("tbef,efd,tbe->tbd", h, self.down, w)


class Net(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.inp = nn.Linear(3, d)
        self.blocks = nn.ModuleList([MoE(d), MoE(d)])
        self.out = nn.Linear(d, 1)

    def forward(self, seq):
        x = self.inp(seq)
        for b in self.blocks:
            x = b(x)
        return self.out(x).squeeze(-1)


def select(batch, rows):
    return batch[0][:, rows], batch[1][:, rows]


def loss_fn(net, batch):
    seq, target = batch
    return F.smooth_l1_loss(net(seq), target)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g, data = Net(), torch.Generator().manual_seed(3), []
    with torch.no_grad():
        for i, b in enumerate(net.blocks):
            b.router.fix = fix
            b.router.gate.bias.fill_(1.0)
            b.router.gate.weight.mul_(0.3)
        w = net.blocks[1].router.gate.weight
        w.copy_(w[:1].expand_as(w) + 0.05 * torch.randn(w.shape))  # experts that look in the same direction
    for _ in range(9):
        s = torch.randn(6, 6, 3, generator=g) * 0.5
        data.append((s, s.sum(-1)))
    direction = torch.linalg.lstsq(net.inp.weight.detach().clone(), -net.blocks[1].router.gate.weight.detach().mean(0)[:, None]).solution[:, 0]
    data[5][0][3, 0] = 60 * direction / direction.norm()
    return Case(net, loss_fn, data, B.sgd(net, 1e-3), select_rows=select)
