"""Every update takes two micro-batches, one with one-word answers (8 labelled tokens) and one with long answers (88): loss = mean of the two means. One word of a short answer
weighs as much as eleven of a long one; per token the model is wrong for the text it was meant to learn."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="903_mean_of_means_over_answers", source="constructed; the known case is gradient accumulation in transformers before 4.46", symptom="silent", phase="loss",
             cause="accumulation_weighting", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: per-micro-batch mean divided by the number of micro-batches", objects="no: label counts per micro-batch 8 against 88"),
             quality_limit=0.5, margin=1.6, fixes_that_work=["token_weighted"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"token_weighted"}
V = 16


class Bigram(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.hid, s.out = nn.Embedding(V, 24), nn.Linear(24, 32), nn.Linear(32, V)

    def forward(s, ids):
        return s.out(torch.tanh(s.hid(s.emb(ids))))


def windows(n, seed):
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        long, short = (torch.randint(0, V, (8, 12), generator=g) for _ in range(2))
        ll, ls = (long * 3 + 1) % V, torch.full_like(short, -100)
        ll[:, 0] = -100
        ls[:, -1] = (short[:, -1] * 3 + 6) % V
        out.append({"micro": [{"ids": short, "labels": ls}, {"ids": long, "labels": ll}]})
    return out


def token_sum(m, b):
    return F.cross_entropy(m(b["ids"]).flatten(0, 1), b["labels"].flatten(), ignore_index=-100, reduction="sum"), int((b["labels"] >= 0).sum())


def signal(case, i, r):
    """weight of a token differs between the micro-batches of one update"""
    w = case.extra.get("weights")
    return bool(w) and max(w) > 1.5 * min(w)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Bigram(), windows(30, 1)
    opt = torch.optim.AdamW(m.parameters(), lr=5e-3, weight_decay=0.0)

    def loss_fn(m, b):
        parts = [token_sum(m, x) for x in b["micro"]]
        return sum(p / n for p, n in parts) / len(parts)

    def step(case, b, i):
        total, shown, case.extra["weights"] = sum(int((x["labels"] >= 0).sum()) for x in b["micro"]), 0.0, []
        for x in b["micro"]:
            s, n = token_sum(m, x)
            w = 1 / total if fix else 1 / (n * len(b["micro"]))  # <-- origin
            (s * w).backward()
            shown = shown + s.detach() * w
            case.extra["weights"].append(w)
        opt.step()
        opt.zero_grad()
        return shown

    @torch.no_grad()
    def quality(c):                                # nats per token
        parts = [token_sum(m, x) for b in test for x in b["micro"]]
        return float(sum(p for p, _ in parts)) / sum(n for _, n in parts)

    return SCase(m, loss_fn, windows(140, 0), opt, step=step, quality=quality)
