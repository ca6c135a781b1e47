"""AdamW(weight_decay=20) over everything, 'because the last project had 20 in its config' (there with a rate a hundred times smaller). Every step takes 20 percent off
every weight and norm gain; whatever is learnt is gone after a dozen steps."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="526_decay_wins_over_rare_words", source="constructed: decoupled decay copied with another rate", symptom="silent", phase="optimizer", cause="weight_decay_dominates", op=None,
             module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["norm.weight", "words.weight", "fc.weight"],
             static_visible=dict(source="yes: lr * weight_decay = 0.2", objects="yes: lr * weight_decay of the group, norm gains included"),
             named=dict(kind="shrinks_to_zero", names=["norm.weight", "words.weight"]),
             quality_limit=0.85, margin=1.6, fixes_that_work=["decay_001", "no_decay"], fixes_that_do_not=["clip", "longer"])
FIXES = {"decay_001", "no_decay"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.words, s.fc, s.norm, s.out = nn.Embedding(64, 16), nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(s, ids):
        return s.out(F.gelu(s.norm(s.fc(s.words(ids).mean(1)))))


def texts(n, seed, bs=24):
    g, w = torch.Generator().manual_seed(seed), torch.randn(64, 4, generator=torch.Generator().manual_seed(2))
    return [{"ids": (i := torch.randint(0, 64, (bs, 5), generator=g)), "y": w[i].sum(1).argmax(-1)} for _ in range(n)]


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]), b["y"])


def signal(case, i, r):
    return any(g["lr"] * g["weight_decay"] > 0.05 for g in case.optimizer.param_groups)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Net(), S.cat(texts(16, 88))
    wd = {"decay_001": 0.01, "no_decay": 0.0}.get(fix, 20.0)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=wd)  # <-- origin
    return SCase(m, loss_fn, texts(120, 5), opt, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
