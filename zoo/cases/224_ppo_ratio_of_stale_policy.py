"""PPO on stale rollouts: exp(new - old) overflows for an action the behaviour policy found almost impossible; with a negative
advantage the pessimistic minimum keeps the infinity."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="224_ppo_ratio_of_stale_policy", source="https://github.com/radixark/miles/pull/1363",
             symptom="inf_loss", phase="loss", cause="exp_overflow", op="exp", module=None, line_marker="# <-- origin", first_bad_step=7, bad_rows=[3],
             fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp"}


class GaussianPolicy(nn.Module):
    def __init__(s):
        super().__init__()
        s.mean, s.log_std, s.value = B.mlp(5, 16, 2), nn.Parameter(torch.zeros(2)), B.mlp(5, 16, 1)

    def forward(s, obs):
        return torch.distributions.Normal(s.mean(obs), s.log_std.exp(), validate_args=False), s.value(obs)[:, 0]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = GaussianPolicy()

    def loss_fn(m, b):
        dist, v = m(b["obs"])
        log_ratio = dist.log_prob(b["act"]).sum(-1) - b["old_logp"]
        if fix == "clamp":
            log_ratio = log_ratio.clamp(-20, 20)
        ratio = log_ratio.exp()  # <-- origin
        clipped = ratio.clamp(0.8, 1.2)
        return -torch.min(ratio * b["adv"], clipped * b["adv"]).mean() + 0.5 * F.mse_loss(v, b["ret"])

    g = torch.Generator().manual_seed(4)
    data = []
    for _ in range(10):
        obs, act = torch.randn(6, 5, generator=g), torch.randn(6, 2, generator=g)
        with torch.no_grad():
            old = m(obs)[0].log_prob(act).sum(-1)
        data.append(dict(obs=obs, act=act, old_logp=old, adv=torch.randn(6, generator=g), ret=torch.randn(6, generator=g)))
    data[7]["old_logp"][3] = -400.0               # sampled by a policy whose variance had collapsed
    data[7]["adv"][3] = -0.7
    return Case(m, loss_fn, data, B.adam(m, 3e-4), clip_norm=0.5)
