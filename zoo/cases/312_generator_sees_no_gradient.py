"""Generator and critic in one loss of two terms. The fakes are detached once, for both terms, so the generator never learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="312_generator_sees_no_gradient", source="common report: detached fakes reused in the generator's loss",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, op_also=["detach"], module="gen", module_also=["gen.fc1", "gen.fc2"], line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["no_detach"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"no_detach"}


class Gan(nn.Module):
    def __init__(s):
        super().__init__()
        s.gen, s.critic = B.mlp(4, 12, 8), B.mlp(8, 12, 1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = Gan(), B.xy(8), torch.Generator().manual_seed(3)

    def loss_fn(m, b):
        fake = m.gen(b["z"])
        if fix != "no_detach":
            fake = fake.detach()  # <-- origin
        critic = F.softplus(-m.critic(b["x"])).mean() + F.softplus(m.critic(fake)).mean()
        return critic + F.softplus(-m.critic(fake)).mean()

    for b in data:
        b["z"] = torch.randn(6, 4, generator=g)
    return Case(m, loss_fn, data, B.adam(m), healthy=lambda log: all(v for n, v in log[-1].grads.items() if n.startswith("gen")))
