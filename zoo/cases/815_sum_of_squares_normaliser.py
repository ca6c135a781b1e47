"""Observation normaliser of an agent keeps count, sum and sum of squares; altitude has a large mean and almost no
spread, so in fp32 sum_sq/n - mean^2 comes out negative and its root is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="815_sum_of_squares_normaliser", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="cancellation", op="sqrt", module="obs_norm", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=None, fixes_that_work=["welford", "clamp", "fp64"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"welford", "clamp", "fp64"}


class ObsNorm(nn.Module):
    fix = None

    def __init__(s, d, dtype=torch.float32):
        super().__init__()
        s.register_buffer("n", torch.zeros((), dtype=dtype))
        s.register_buffer("s1", torch.zeros(d, dtype=dtype))
        s.register_buffer("s2", torch.zeros(d, dtype=dtype))

    def forward(s, x):
        if s.fix == "welford":
            with torch.no_grad():
                n = s.n + len(x)
                mu = x.mean(0)
                delta = mu - s.s1
                s.s2 += (x - mu).square().sum(0) + delta.square() * s.n * len(x) / n
                s.s1 += delta * len(x) / n
                s.n.copy_(n)
            return (x - s.s1) / torch.sqrt(s.s2 / s.n + 1e-4)
        with torch.no_grad():
            s.n += len(x)
            s.s1 += x.to(s.s1.dtype).sum(0)
            s.s2 += x.to(s.s1.dtype).square().sum(0)
        mean = s.s1 / s.n
        var = s.s2 / s.n - mean.square()
        if s.fix == "clamp":
            var = var.clamp_min(0.0)
        return ((x - mean) / torch.sqrt(var + 1e-4)).to(x.dtype)  # <-- origin


class Policy(nn.Module):
    def __init__(s, dtype):
        super().__init__()
        s.obs_norm, s.pi = ObsNorm(4, dtype), B.mlp(4, 24, 2)

    def forward(s, x):
        return s.pi(s.obs_norm(x).clamp(-10, 10))


def loss_fn(m, b):
    return (F.cross_entropy(m(b["obs"]), b["act"], reduction="none") * b["adv"]).mean()


OFFSET = 251.39


def make(seed=0, fix=None):
    m, g = Policy(torch.float64 if fix == "fp64" else torch.float32), torch.Generator().manual_seed(95)
    m.obs_norm.fix = fix
    data = []
    for i in range(11):
        obs = torch.randn(6, 4, generator=g)
        obs[:, 2] = OFFSET + 0.05 * obs[:, 2]
        data.append(dict(obs=obs, act=torch.randint(0, 2, (6,), generator=g), adv=torch.randn(6, generator=g)))
    return Case(m, loss_fn, data, B.adam(m))
