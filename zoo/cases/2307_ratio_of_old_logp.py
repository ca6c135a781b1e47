"""PPO ratio exp(new - old): one old log-probability was stored as -600 by the sampler (top-p cut it off); exp overflows before the clip."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2307_ratio_of_old_logp',
             source='own, from practice',
             symptom='inf_loss',
             phase='loss',
             cause='exp_overflow',
             op='exp',
             op_also=[],
             module=None,
             line_marker='# <-- origin',
             first_bad_step=5,
             bad_rows=[4],
             fixes_that_work=['clamp', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'clamp'}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 4), B.xy(10)
    g = torch.Generator().manual_seed(4)
    for b in data:
        b["a"] = torch.randint(0, 4, (6,), generator=g)
        b["old"] = torch.full((6,), -1.4)
        b["adv"] = torch.randn(6, generator=g)
    data[5]["old"][4] = -600.0
    data[5]["adv"][4] = -0.7

    def loss_fn(m, b):
        new = m(b["x"]).log_softmax(1).gather(1, b["a"][:, None]).squeeze(1)
        gap = new - b["old"]
        if fix == "clamp":
            gap = gap.clamp(-20, 20)
        ratio = torch.exp(gap)  # <-- origin
        return -torch.min(ratio * b["adv"], ratio.clamp(0.8, 1.2) * b["adv"]).mean()

    return Case(m, loss_fn, data, B.adam(m))
