"""To save memory a batch, sorted by length as it comes, is run in four chunks by a helper that begins with zero_grad: the longest quarter alone reaches the optimizer,
and long documents are nearly all of one kind."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="534_chunks_of_a_batch_that_is_sorted", source="constructed; neighbour: https://github.com/bytetriper/RAE/issues/67", symptom="silent", phase="loop", cause="accumulation_cleared", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, static_visible=dict(source="yes: zero_grad inside the function that is called per chunk", objects="no"),
             quality_limit=0.3, margin=1.8, fixes_that_work=["clear_once"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"clear_once"}


def signal(case, i, r):
    """a gradient is wiped by zero_grad before any step has used it"""
    return bool(r) and "backward zero backward" in " ".join(r.events)


def run_chunk(m, opt, part, n, clear):
    if clear:
        opt.zero_grad()  # <-- origin
    loss = S.ce(m, part) * len(part["y"]) / n
    loss.backward()
    return loss.detach()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=1e-2)
    data = S.classes(80, bs=32)
    for j, b in enumerate(data):
        length = 10 * (b["y"] + 1) + torch.randn(32, generator=torch.Generator().manual_seed(j)) * 3
        order = torch.argsort(length)
        b["x"], b["y"] = b["x"][order], b["y"][order]

    def step(case, b, i):
        n, total = len(b["y"]), 0.0
        if fix:
            opt.zero_grad()
        for lo in range(0, n, 8):
            total = total + run_chunk(m, opt, {k: v[lo:lo + 8] for k, v in b.items()}, n, not fix)
        opt.step()
        return total

    return SCase(m, S.ce, data, opt, step=step, quality=lambda c: S.heldout_err(m, test))
