"""Speaker verification pools frames by attention into a mean and a spread. After the silence is cut away an utterance keeps one valid frame: the
weights are 1, 0, 0, ..., the spread is an exact zero, fine in forward; its root has no derivative there."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2102_attentive_statistics_of_a_one_frame_utterance", source="written for the unseen set, no public report",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", module="pool", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[4], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class StatPool(nn.Module):
    def __init__(s, d, fix=None):
        super().__init__()
        s.att, s.fix = nn.Linear(d, 1), fix

    def forward(s, h, valid):
        a = s.att(torch.tanh(h)).squeeze(-1).masked_fill(~valid, float("-inf"))
        w = a.softmax(1)[..., None]
        mean = (w * h).sum(1)
        var = (w * (h - mean[:, None]).square()).sum(1)
        std = torch.sqrt(var + (1e-6 if s.fix == "eps" else 0.0))  # <-- origin
        return torch.cat([mean, std], -1)


class Speaker(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.frames, s.pool, s.who = nn.Linear(10, 16), StatPool(16, fix), nn.Linear(32, 6)

    def forward(s, x, length):
        valid = torch.arange(x.shape[1]) < length[:, None]
        return s.who(s.pool(F.gelu(s.frames(x)), valid))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Speaker(fix)
    g = torch.Generator().manual_seed(12)
    data = [dict(x=torch.randn(6, 14, 10, generator=g), length=torch.randint(4, 15, (6,), generator=g), who=torch.randint(0, 6, (6,), generator=g)) for _ in range(9)]
    data[5]["length"][4] = 1
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"], b["length"]), b["who"]), data, B.sgd(m, 0.05, momentum=0.9))
