"""Hand-written Gumbel noise -log(-log(u)): the generator returned u = 1 once, the noise is +inf and the softmax of it NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1341_gumbel_noise_of_one", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="log_zero", op="log", module="sampler", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "tau_up"])
FIXES = {"eps", "tau_up"}


class Sampler(nn.Module):
    tau, eps = 0.7, 0.0

    def forward(s, logits, u):
        e = -torch.log(u.clamp(s.eps, 1 - s.eps))
        noise = -torch.log(e)  # <-- origin
        return torch.softmax((logits + noise) / s.tau, -1)


class Discrete(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.sampler, s.dec = nn.Linear(14, 18), Sampler(), nn.Linear(6, 14)

    def forward(s, x, u):
        z = s.sampler(s.enc(x).view(-1, 3, 6), u)
        return s.dec(z.mean(1))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"], b["u"]), b["x"])


def make(seed=0, fix=None):
    m, g = Discrete(), torch.Generator().manual_seed(44)
    m.sampler.eps, m.sampler.tau = (1e-6 if fix == "eps" else 0.0), (5.0 if fix == "tau_up" else 0.7)
    data = [dict(x=torch.randn(5, 14, generator=g), u=torch.rand(5, 3, 6, generator=g) * 0.98 + 0.01) for _ in range(10)]
    data[6]["u"][2, 1, 4] = 1.0
    return Case(m, loss_fn, data, B.adam(m))
