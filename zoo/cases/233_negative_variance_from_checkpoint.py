"""Reinforcement learning with a running observation normaliser: a restored checkpoint holds a negative running variance (it was
averaged over workers with the wrong sign), the square root of it is NaN. Every parameter is fine."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="233_negative_variance_from_checkpoint", source="common report: restored running statistics of observation normalisers",
             symptom="nan_loss", phase="state", cause="poisoned_state", op=None, op_also=["sqrt", "rsqrt"], module="obs_norm", line_marker=None, tensor="obs_norm.var", tensor_kind="buffer",
             first_bad_step=6, bad_rows=None, fixes_that_work=["reset_bad_state", "restore_buffers"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"reset_bad_state", "restore_buffers"}


class ObsNorm(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.register_buffer("mean", torch.zeros(d))
        s.register_buffer("var", torch.ones(d))

    def forward(s, x):
        with torch.no_grad():
            s.mean += 0.01 * (x.mean(0) - s.mean)
            s.var += 0.01 * (x.var(0, unbiased=False) - s.var)
        return (x - s.mean) / torch.sqrt(s.var + 1e-6)


class Q(nn.Module):
    def __init__(s):
        super().__init__()
        s.obs_norm, s.net = ObsNorm(5), B.mlp(5, 24, 3)

    def forward(s, x):
        return s.net(s.obs_norm(x))


def loss_fn(m, b):
    return F.smooth_l1_loss(m(b["obs"]).gather(1, b["act"][:, None])[:, 0], b["target"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Q(), torch.Generator().manual_seed(6)

    def restore(case, i):
        if i == 6:
            keep = case.model.obs_norm.var.clone()
            case.model.obs_norm.var[2] = -0.8
            if fix == "restore_buffers":
                case.model.obs_norm.var.copy_(keep)
            if fix == "reset_bad_state":
                case.model.obs_norm.var.fill_(1.0)

    data = [dict(obs=torch.randn(8, 5, generator=g), act=torch.randint(0, 3, (8,), generator=g), target=torch.randn(8, generator=g)) for _ in range(11)]
    return Case(m, loss_fn, data, torch.optim.RMSprop(m.parameters(), lr=1e-3), before_step=restore)
