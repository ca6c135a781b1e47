"""A binarised student: straight-through gradients, an optimizer of our own, gradients passed through nan_to_num, two backward passes over one graph."""
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return w.sign()

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * (w.abs() <= 1)


class BinaryLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, Sign.apply(self.weight) * self.weight.detach().abs().mean(), self.bias)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def distil(student, teacher, x, y, T=4.0):
    s = student(x)
    with torch.no_grad():
        t = teacher(x)
    soft = F.kl_div(F.log_softmax(s / T, 1), F.softmax(t / T, 1), reduction="batchmean") * T * T
    return F.cross_entropy(s, y), soft


def main():
    torch.manual_seed(11)
    teacher = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
    student = nn.Sequential(BinaryLinear(9, 24), nn.Hardtanh(), BinaryLinear(24, 3))
    opt = Lion(student.parameters())
    for p in student.parameters():
        p.register_hook(lambda g: torch.nan_to_num(g, 0.0, 1.0, -1.0))
    x = torch.randn(256, 9)
    y = teacher(x).argmax(1)
    for epoch in range(3):
        for i in torch.randperm(256).split(32):
            hard, soft = distil(student, teacher, x[i], y[i])
            opt.zero_grad()
            hard.backward(retain_graph=True)
            soft.backward()
            opt.step()
        print(epoch, hard.item(), soft.item())
    print("FINITE" if all(torch.isfinite(p).all() for p in student.parameters()) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in student.parameters())).hexdigest())


main()
