"""A causal convolution net for next-symbol prediction with padding=dilation on both sides and nothing cut off: each layer looks one dilation into the
future. On coin flips the loss goes below the entropy."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="523_wavenet_padded_on_both_sides", source="https://github.com/lucidrains/magvit2-pytorch/pull/27, https://github.com/maxim5/time-series-machine-learning/issues/12", symptom="silent", phase="forward",
             cause="target_leak", op=None, module="convs.0", module_also=["convs.1", "convs.2"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="yes: symmetric padding in a next-step model", objects="yes: change the last input, outputs at earlier positions change"),
             quality_limit=0.05, fixes_that_work=["left_only"], fixes_that_do_not=["lr_down", "clip", "longer"])
FIXES = {"left_only"}


class WaveNet(nn.Module):
    def __init__(s, left):
        super().__init__()
        s.left, s.embed = left, nn.Embedding(8, 24)
        s.convs = nn.ModuleList(nn.Conv1d(24, 24, 3, dilation=d, padding=0 if left else d) for d in (1, 2, 4))  # <-- origin
        s.out = nn.Conv1d(24, 8, 1)

    def forward(s, ids):
        x = s.embed(ids).transpose(1, 2)
        for c in s.convs:
            x = x + F.relu(c(F.pad(x, (2 * c.dilation[0], 0)) if s.left else x))
        return s.out(x)                            # (B, 8, T)


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"])[:, :, :-1], b["ids"][:, 1:])


def signal(case, i, r):
    a = torch.arange(12)[None] % 8
    b = a.clone()
    b[0, -1] = (b[0, -1] + 1) % 8
    with torch.no_grad():
        return float((case.model(a) - case.model(b))[..., :-1].abs().max()) > 1e-6


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(1)
    m, ids = WaveNet(bool(fix)), [torch.randint(0, 8, (8, 20), generator=g) for _ in range(180)]
    test = {"ids": torch.cat(ids[140:])}
    return SCase(m, loss_fn, [{"ids": x} for x in ids[:140]], torch.optim.Adam(m.parameters(), lr=5e-3),
                 quality=lambda c: max(0.0, math.log(8) - S.in_eval(m, lambda: loss_fn(m, test))))
