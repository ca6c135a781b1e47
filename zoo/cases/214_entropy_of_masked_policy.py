"""Actor-critic with illegal actions masked to -inf: their probability is exactly 0 and the entropy bonus p * log p is 0 * -inf."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="214_entropy_of_masked_policy", source="https://github.com/Stable-Baselines-Team/stable-baselines3-contrib/pull/302",
             symptom="nan_loss", phase="loss", cause="log_zero", op="log", op_also=["mul"], module=None, line_marker="# <-- origin", first_bad_step=6, bad_rows=[0, 5],
             fixes_that_work=["xlogy", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"xlogy", "eps"}


class ActorCritic(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.pi, s.v = B.mlp(6, 24, 24), nn.Linear(24, 5), nn.Linear(24, 1)

    def forward(s, x):
        h = torch.tanh(s.body(x))
        return s.pi(h), s.v(h)[:, 0]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = ActorCritic()

    def loss_fn(m, b):
        logits, value = m(b["obs"])
        p = torch.softmax(logits.masked_fill(~b["legal"], float("-inf")), -1)
        chosen = p.gather(1, b["action"][:, None])[:, 0]
        adv = b["ret"] - value.detach()
        if fix == "xlogy":
            entropy = -torch.where(b["legal"], p * torch.where(b["legal"], p, torch.ones_like(p)).log(), torch.zeros_like(p)).sum(-1)
        else:
            safe = p + 1e-8 if fix == "eps" else p
            logp = torch.log(safe)  # <-- origin
            entropy = -(p * logp).sum(-1)
        return -(chosen.log() * adv).mean() + 0.5 * F.mse_loss(value, b["ret"]) - 0.01 * entropy.mean()

    g = torch.Generator().manual_seed(12)
    data = [dict(obs=torch.randn(8, 6, generator=g), legal=torch.ones(8, 5, dtype=torch.bool), action=torch.randint(0, 3, (8,), generator=g), ret=torch.randn(8, generator=g)) for _ in range(10)]
    data[6]["legal"][0, 4] = False
    data[6]["legal"][5, 3:] = False
    return Case(m, loss_fn, data, torch.optim.RMSprop(m.parameters(), lr=7e-4, eps=1e-5), clip_norm=0.5)
