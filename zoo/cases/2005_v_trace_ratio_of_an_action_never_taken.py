"""IMPALA's truncated importance ratio min(pi / mu, 1): the behaviour policy's stored probability is exactly 0 in one sample. The truncation
swallows the infinity, the loss is finite, and backward multiplies a gradient of 0 by 1 / 0."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2005_v_trace_ratio_of_an_action_never_taken", source="written for the unseen set, no public report",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[3], fixes_that_work=["eps", "clamp", "double_where", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp", "double_where"}


class ActorCritic(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.pi, s.v = B.mlp(6, 24, 24), nn.Linear(24, 4), nn.Linear(24, 1)

    def forward(s, o):
        h = torch.tanh(s.body(o))
        return torch.softmax(s.pi(h), -1), s.v(h).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = ActorCritic()

    def loss_fn(m, b):
        p, v = m(b["obs"])
        pa, mu = p.gather(1, b["act"][:, None]).squeeze(1), b["mu"]
        if fix == "eps":
            mu = mu + 1e-6
        if fix == "clamp":
            mu = mu.clamp(min=1e-6)
        if fix == "double_where":
            mu = torch.where(mu > 0, mu, torch.ones_like(mu))
        rho = torch.clamp(pa / mu, max=1.0)  # <-- origin
        adv = (b["ret"] - v).detach()
        return -(rho * adv).mean() + 0.5 * (v - b["ret"]).pow(2).mean()

    g = torch.Generator().manual_seed(9)
    data = [dict(obs=torch.randn(7, 6, generator=g), act=torch.randint(0, 4, (7,), generator=g), mu=0.1 + 0.8 * torch.rand(7, generator=g),
                 ret=torch.randn(7, generator=g)) for _ in range(9)]
    data[5]["mu"][3] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
