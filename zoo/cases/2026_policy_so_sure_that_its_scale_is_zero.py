"""A Gaussian policy whose log-scale head has no floor: exp(-110) is 0 in float32, and the z-score divides by it."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2026_policy_so_sure_that_its_scale_is_zero", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[2], fixes_that_work=["clamp", "eps", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp", "eps"}


class Policy(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.mean, s.log_scale, s.fix = B.mlp(6, 24, 1), nn.Linear(6, 1), fix
        with torch.no_grad():
            s.log_scale.weight.fill_(0.2)

    def forward(s, o):
        ls = s.log_scale(o)
        if s.fix == "clamp":
            ls = ls.clamp(-5, 2)
        scale = ls.exp()
        return s.mean(o), (scale + 1e-3 if s.fix == "eps" else scale), ls


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Policy(fix)

    def loss_fn(m, b):
        mu, scale, log_scale = m(b["obs"])
        act = mu.detach() + scale.detach() * b["eps"]
        z = (act - mu) / scale  # <-- origin
        return ((0.5 * z.pow(2) + log_scale) * b["adv"]).mean()

    g = torch.Generator().manual_seed(49)
    data = [dict(obs=torch.randn(6, 6, generator=g), eps=torch.randn(6, 1, generator=g), adv=torch.randn(6, 1, generator=g)) for _ in range(9)]
    data[5]["obs"][2] = -95.0
    return Case(m, loss_fn, data, B.sgd(m, 1e-3))
