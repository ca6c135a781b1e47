"""A window holds one batch of long documents (192 tokens) and three of two-token chats (8 tokens each). Each micro-batch returns its own token mean and
the window averages the four means: 11 percent of the tokens get 75 percent of the vote."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="503_short_chats_outvote_the_documents", source="https://github.com/huggingface/transformers/issues/24725 (kind; reduced and sharpened)", symptom="silent",
             phase="loss", cause="accumulation_weighting", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=3, knowable_at=3,
             static_visible=dict(source="yes: mean loss divided by the window while lengths differ", objects="yes: token counts of the micro-batches differ 24-fold"),
             quality_limit=0.4, margin=2.0, fixes_that_work=["tokens_of_the_window"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"tokens_of_the_window"}
W = 4


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    tag = torch.randint(0, 4, (16,), generator=torch.Generator().manual_seed(3))
    out = []
    for i in range(n):
        short = i % W != 1
        ids = torch.randint(0, 16, (4, 2 if short else 48), generator=g)
        out.append({"ids": ids, "tags": (tag[ids] + short) % 4})       # chats use the same words in another sense
    return out


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]).flatten(0, 1), b["tags"].flatten())


def signal(case, i, r):
    if not r or not r.stepped:
        return False
    n = [b["tags"].numel() for b in case.batches[i - W + 1:i + 1]]
    return max(n) > 4 * min(n) and case.extra["per_micro_mean"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Embedding(16, 12), nn.Linear(12, 4))
    batches, test = data(240, 1), data(40, 2)
    opt = torch.optim.Adam(m.parameters(), lr=2e-2)

    def step(case, b, i):
        loss = loss_fn(m, b)
        if fix:
            total = sum(x["tags"].numel() for x in case.batches[i - i % W:i - i % W + W])
            (loss * b["tags"].numel() / total).backward()
        else:
            (loss / W).backward()  # <-- origin
        if i % W == W - 1:
            opt.step()
            opt.zero_grad()
        return loss

    def quality(c):                                # tagging error per token, on text as it comes
        wrong = sum(float((m(b["ids"]).argmax(-1) != b["tags"]).sum()) for b in test)
        return wrong / sum(b["tags"].numel() for b in test)

    return SCase(m, loss_fn, batches, opt, step=step, quality=quality, extra={"per_micro_mean": not fix})
