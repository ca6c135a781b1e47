"""An entropy bonus through torch.special.entr: illegal actions have probability exactly zero, the entropy is fine, its slope at zero is
infinite and meets the zero slope of the softmax."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="427_entropy_bonus_of_forbidden_actions", source="common report: entropy of masked policies has NaN gradients",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="special_entr", op_also=["entr"], module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[1], fixes_that_work=["clamp", "eps", "double_where", "finfo_min_soft", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "eps", "double_where", "finfo_min_soft"}


def entropy(p, fix=None):
    if fix == "clamp":
        p = p.clamp(min=1e-8)
    if fix == "eps":
        p = p + 1e-8
    if fix == "double_where":
        p = torch.where(p > 0, p, 1.0)
    return torch.special.entr(p).sum(-1)  # <-- origin


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Sequential(nn.Linear(6, 16), nn.Tanh()), nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.pi(h), self.v(h).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g, data = ActorCritic(), torch.Generator().manual_seed(3), []
    low = -20.0 if fix == "finfo_min_soft" else -1e9

    def a2c(net, b):
        logits, v = net(b["obs"])
        logits = logits.masked_fill(~b["legal"], low)
        logp, p = logits.log_softmax(-1), logits.softmax(-1)
        adv = (b["ret"] - v).detach()
        pg = -(adv * logp.gather(-1, b["act"][:, None])[:, 0]).mean()
        return pg + 0.5 * F.mse_loss(v, b["ret"]) - 0.01 * entropy(p, fix).mean()

    for _ in range(8):
        data.append(dict(obs=torch.randn(5, 6, generator=g), legal=torch.ones(5, 4, dtype=torch.bool), act=torch.zeros(5, dtype=torch.long), ret=torch.randn(5, generator=g)))
    data[4]["legal"][1, 2] = False
    return Case(net, a2c, data, B.adam(net, 1e-3))
