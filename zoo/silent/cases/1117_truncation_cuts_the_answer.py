"""Instruction tuning: the prompt is masked with -100 and the row is cut at max_length from the right. Most prompts are longer than that, so most rows have no label left."""
import torch
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1117_truncation_cuts_the_answer", source="constructed from the pattern ids[:max_length] with masked prompts", symptom="silent", phase="data",
             cause="labels_mostly_masked", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="no", objects="yes: rows whose labels are all -100"),
             quality_limit=0.3, margin=3.0, fixes_that_work=["cut_the_prompt"], fixes_that_do_not=["clip"])
FIXES = {"cut_the_prompt"}
MAX, ANSWER = 12, 4


def signal(case, i, r):
    """more than half of all rows have no label"""
    lab = torch.cat([b["labels"] for b in case.batches])
    return float((lab[:, 1:] == -100).all(1).float().mean()) > 0.5


def row(g, fixed):
    n = int(torch.randint(20, (1,), generator=g)) + 8
    prompt = torch.randint(2, 32, (n,), generator=g)
    a = [int(prompt[-1])]
    for _ in range(ANSWER):
        a.append(2 + (a[-1] * 3 + 1) % 30)
    if fixed:
        prompt = prompt[-(MAX - ANSWER):]
    ids = torch.cat([prompt, torch.tensor(a[1:])])
    lab = torch.cat([torch.full_like(prompt, -100), torch.tensor(a[1:])])
    return ids[:MAX], lab[:MAX]  # <-- origin


def batches(n, seed, fixed):
    g, out = torch.Generator().manual_seed(400 + seed), []
    while len(out) < n:
        rows = [row(g, fixed) for _ in range(16)]
        b = {"ids": torch.stack([r[0] for r in rows]), "labels": torch.stack([r[1] for r in rows])}
        if (b["labels"] != -100).any():
            out.append(b)
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = B.TinyLM(), S.cat(batches(8, 7, True))
    return SCase(m, B.lm_loss, batches(60, 0, fix), torch.optim.AdamW(m.parameters(), lr=3e-3), quality=lambda c: S.in_eval(m, lambda: B.lm_loss(m, test)))
