"""Fine-tuning: backbone at 1e-6, new head at 1e-2. The head's group says {"learning_rate": 1e-2}; torch keeps unknown keys without a word and the head runs at the default, 1e-6."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="905_group_key_learning_rate", source="constructed", symptom="silent", phase="optimizer", cause="wrong_param_group_lr", op=None, module="head", bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=-1, tensors=["head.weight", "head.bias"],
             static_visible=dict(source="yes: key 'learning_rate' in a parameter group", objects="yes: the group holds learning_rate=1e-2 and lr=1e-6"),
             named=dict(kind="lr_too_small", names=["head.weight", "head.bias"]),
             quality_limit=0.9, margin=1.5, fixes_that_work=["lr_key"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"lr_key"}


class Text(nn.Module):
    def __init__(s, k):
        super().__init__()
        s.bag, s.body, s.head = nn.EmbeddingBag(40, 24, mode="mean"), nn.Linear(24, 24), nn.Linear(24, k)

    def forward(s, ids):
        return s.head(F.gelu(s.body(s.bag(ids))))


def docs(n, seed, merge=None, bs=16):
    """four topics, ten words each; merge maps topic -> label of the new task"""
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        y = torch.randint(0, 4, (bs,), generator=g)
        own = torch.rand(bs, 9, generator=g) < 0.5
        ids = torch.where(own, y[:, None] * 10 + torch.randint(0, 10, (bs, 9), generator=g), torch.randint(0, 40, (bs, 9), generator=g))
        out.append({"x": ids, "y": y if merge is None else torch.tensor(merge)[y]})
    return out


def signal(case, i, r):
    return any("learning_rate" in g and g["learning_rate"] != g["lr"] for g in case.optimizer.param_groups)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Text(4), S.cat(docs(16, 9, [2, 0, 1, 2]))
    pre = torch.optim.Adam(m.parameters(), lr=1e-2)
    for b in docs(120, 1):
        pre.zero_grad()
        S.ce(m, b).backward()
        pre.step()
    m.zero_grad()
    m.head = nn.Linear(24, 3)
    rest = [p for n, p in m.named_parameters() if not n.startswith("head")]
    opt = torch.optim.AdamW([{"params": rest}, {"params": list(m.head.parameters()), ("lr" if fix else "learning_rate"): 1e-2}], lr=1e-6)  # <-- origin
    return SCase(m, S.ce, docs(100, 2, [2, 0, 1, 2]), opt, quality=lambda c: S.heldout_ce(m, test))
