"""Sequence-level importance ratio exp(sum(logp_new - logp_old)): for one long stale answer the sum is above 88 and the
ratio infinite; its advantage is negative, so the clipped minimum keeps it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1342_sequence_ratio_overflow", source="commonly reported; no link was looked up",
             symptom="inf_loss", phase="loss", cause="exp_overflow", op="exp", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp"}


class Actor(nn.Module):
    def __init__(s):
        super().__init__()
        s.tok, s.conv, s.out = nn.Embedding(20, 16), nn.Conv1d(16, 16, 3), nn.Linear(16, 20)

    def forward(s, ids):
        h = F.pad(s.tok(ids).transpose(1, 2), (2, 0))
        return s.out(F.gelu(s.conv(h)).transpose(1, 2))


def make(seed=0, fix=None):
    m, g = Actor(), torch.Generator().manual_seed(20)

    def loss_fn(m, b):
        lp = F.log_softmax(m(b["ids"])[:, :-1], -1).gather(-1, b["ids"][:, 1:, None]).squeeze(-1)
        gap = (lp - b["old"]).sum(-1)
        if fix:
            gap = gap.clamp(-10, 10)
        ratio = torch.exp(gap)  # <-- origin
        return -torch.minimum(ratio * b["adv"], ratio.clamp(0.8, 1.2) * b["adv"]).mean()

    data = [dict(ids=torch.randint(0, 20, (4, 24), generator=g), old=-3.0 + 0.02 * torch.randn(4, 23, generator=g), adv=torch.randn(4, generator=g)) for _ in range(10)]
    data[6]["old"][1] = -8.0
    data[6]["adv"][1] = -1.5
    return Case(m, loss_fn, data, B.adam(m))
