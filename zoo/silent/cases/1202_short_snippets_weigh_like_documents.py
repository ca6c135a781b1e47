"""Token tagger with accumulation over four micro-batches: two long, clean documents and two short snippets tagged by an older convention. Each micro-batch
takes the mean over its own tokens and is divided by 4: a snippet token weighs as much as sixteen document tokens."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1202_short_snippets_weigh_like_documents", source="constructed", symptom="silent", phase="loss",
             cause="accumulation_weighting", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=3, knowable_at=3,
             static_visible=dict(source="yes: mean per micro-batch divided by the number of micro-batches", objects="no"),
             quality_limit=0.55, margin=1.4, fixes_that_work=["divide_by_window_tokens"], fixes_that_do_not=["clip", "longer"])
FIXES = {"divide_by_window_tokens"}
WINDOW = 4


def signal(case, i, r):
    """micro-batches of one window differ more than fourfold in their number of labelled tokens"""
    n = [int((b["y"] >= 0).sum()) for b in case.batches[i - WINDOW + 1:i + 1]] if i >= WINDOW - 1 else [1]
    return max(n) > 4 * min(n)


def loss_fn(m, b, reduction="mean"):
    return F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten(), ignore_index=-100, reduction=reduction)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = S.Classifier()
    long, short = S.classes(100, bs=64), S.classes(100, bs=4, seed=1)
    data = []
    for j in range(50):
        for k in range(2):
            data += [long[2 * j + k], dict(short[2 * j + k], y=(short[2 * j + k]["y"] + 1) % 4)]
    data = [{"x": b["x"][None], "y": b["y"][None]} for b in data]
    test = S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)
    tokens = [0]

    def step(case, b, i):
        if fix:
            loss = loss_fn(m, b, "sum")
            loss.backward()
            tokens[0] += int((b["y"] != -100).sum())
        else:
            loss = loss_fn(m, b)
            (loss / WINDOW).backward()  # <-- origin
        if (i + 1) % WINDOW == 0:
            if fix:
                for p in m.parameters():
                    p.grad /= tokens[0]
                tokens[0] = 0
            opt.step()
            opt.zero_grad()
        return loss / int((b["y"] != -100).sum()) if fix else loss

    return SCase(m, loss_fn, data, opt, step=step, quality=lambda c: S.heldout_ce(m, test))
