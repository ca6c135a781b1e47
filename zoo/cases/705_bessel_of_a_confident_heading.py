"""A heading head with a von Mises likelihood: log I0(kappa) is written as log(i0(kappa)). A straight motorway gives kappa about 130 and
I0 grows like exp: inf, and the derivative I1/I0 is inf/inf."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="705_bessel_of_a_confident_heading", source="https://github.com/pymc-devs/pymc/pull/2832",
             symptom="inf_loss", phase="loss", cause="exp_overflow", op="i0", op_also=["special_i0"], module=None, line_marker="# <-- origin", first_bad_step=7, bad_rows=[0],
             fixes_that_work=["clamp", "i0e", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "i0e"}


def von_mises_nll(mu, kappa, theta, fix=None):
    if fix == "i0e":
        log_i0 = torch.log(torch.special.i0e(kappa)) + kappa
    else:
        if fix == "clamp":
            kappa = kappa.clamp(max=60.0)
        bessel = torch.special.i0(kappa)  # <-- origin
        log_i0 = bessel.log()
    return math.log(2 * math.pi) + log_i0 - kappa * torch.cos(theta - mu)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    parts = nn.ModuleDict(dict(trunk=nn.Sequential(nn.Linear(5, 16), nn.SiLU()), mu=nn.Linear(16, 1), kappa=nn.Linear(16, 1)))
    with torch.no_grad():
        parts["trunk"][0].weight[0], parts["trunk"][0].bias[0] = torch.tensor([3.0, 0, 0, 0, 0]), 0.0
        parts["kappa"].weight[0, 0] = 2.0
    g = torch.Generator().manual_seed(75)
    data = [(torch.randn(6, 5, generator=g), (torch.rand(6, generator=g) * 2 - 1) * math.pi) for _ in range(10)]
    data[7][0][0, 0] = 22.0

    def loss_fn(parts, batch):
        x, theta = batch
        h = parts["trunk"](x)
        return von_mises_nll(parts["mu"](h)[:, 0], F.softplus(parts["kappa"](h)[:, 0]), theta, fix).mean()

    groups = [{"params": parts["trunk"].parameters(), "lr": 1e-4}, {"params": [*parts["mu"].parameters(), *parts["kappa"].parameters()], "lr": 3e-4}]
    return Case(parts, loss_fn, data, torch.optim.Adam(groups), clip_norm=5.0)
