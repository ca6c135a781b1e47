"""CONTROL: each micro-batch adds the gradient of a plain sum, nothing is divided and nothing cleared in between; before the step the gradients are divided by the tokens
of the window. A last, shorter window of each epoch is stepped too."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="580_control_sums_divided_before_the_step", source="standard practice (num_items_in_batch)", looks_like=["accumulation_weighting", "missing_zero_grad", "accumulation_tail_dropped"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.1)
W, EPOCH = 4, 10


def data(n, seed):
    g, tag = torch.Generator().manual_seed(seed), torch.randint(0, 4, (16,), generator=torch.Generator().manual_seed(3))
    out = []
    for i in range(n):
        ids = torch.randint(0, 16, (4, (2, 30, 5, 12)[i % 4]), generator=g)
        out.append({"ids": ids, "tags": tag[ids]})
    return out


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]).flatten(0, 1), b["tags"].flatten())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = nn.Sequential(nn.Embedding(16, 12), nn.Linear(12, 4)), data(20, 2)
    opt = torch.optim.Adam(m.parameters(), lr=3e-2)
    seen = [0]

    def step(case, b, i):
        n = b["tags"].numel()
        loss = loss_fn(m, b)
        (loss * n).backward()
        seen[0] += n
        j = i % EPOCH
        if j % W == W - 1 or j == EPOCH - 1:
            for p in m.parameters():
                p.grad.div_(seen[0])
            opt.step()
            opt.zero_grad()
            seen[0] = 0
        return loss

    def quality(c):
        return sum(float((m(b["ids"]).argmax(-1) != b["tags"]).float().mean()) for b in test) / len(test)

    return SCase(m, loss_fn, data(EPOCH * 12, 1), opt, step=step, quality=quality)
