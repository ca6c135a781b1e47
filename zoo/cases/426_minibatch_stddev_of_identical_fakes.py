"""The minibatch-stddev layer of a StyleGAN critic: when the generator collapsed to one output for a whole batch the deviation is
exactly zero, and the root has no slope there."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="426_minibatch_stddev_of_identical_fakes", source="https://arxiv.org/abs/1710.10196 (the layer adds 1e-8 under the root)",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", module="critic.stddev", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=None, fixes_that_work=["eps", "clamp", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


def deviation(x, fix):
    d = x - x.mean(0, keepdim=True)
    v = (d * d).mean(0)
    v = v + 1e-8 if fix == "eps" else v.clamp(min=1e-8) if fix == "clamp" else v
    return v.sqrt()  # <-- origin


class StdDev(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def forward(self, x):
        s = deviation(x, self.fix).mean()
        return torch.cat([x, s.expand(x.shape[0], 1, *x.shape[2:])], 1)


class Critic(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.conv, self.stddev, self.out = nn.Conv2d(1, 4, 3, padding=1), StdDev(fix), nn.Conv2d(5, 1, 6)

    def forward(self, x):
        return self.out(self.stddev(F.leaky_relu(self.conv(x), 0.2))).flatten()


class Gan(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(4, 36), nn.Tanh(), nn.Unflatten(1, (1, 6, 6)))
        self.critic = Critic(fix)

    def forward(self, z, real):
        return self.critic(self.gen(z)), self.critic(real)


def hinge(m, b):
    fake, real = m(b["z"], b["real"])
    return F.relu(1 + fake).mean() + F.relu(1 - real).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Gan(fix), torch.Generator().manual_seed(2), []
    for _ in range(8):
        data.append(dict(z=torch.randn(5, 4, generator=g), real=torch.randn(5, 1, 6, 6, generator=g)))
    data[5]["z"][:] = data[5]["z"][0].clone()
    return Case(m, hinge, data, B.adam(m, 1e-3))
