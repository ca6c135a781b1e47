"""The collator already shifts the labels by one and the loss shifts them again: the model learns the token after the next. The loss falls to 0; what is generated is wrong."""
import torch
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1115_labels_shifted_twice", source="constructed from the pattern: shifted labels handed to a model that shifts by itself", symptom="silent", phase="data",
             cause="label_shift", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="yes: shift in the collator and in the loss", objects="yes: labels[:, :-1] equal ids[:, 1:] before a loss that shifts"),
             quality_limit=0.5, margin=4.0, fixes_that_work=["shift_once"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"shift_once"}


def signal(case, i, r):
    """the labels given to a shifting loss are already the next tokens"""
    b = case.batches[max(i, 0)]
    return torch.equal(b["labels"][:, :-1], b["ids"][:, 1:])


def collate(b, fixed):
    labels = b["ids"].clone()
    if not fixed:
        labels = torch.cat([b["ids"][:, 1:], torch.full_like(b["ids"][:, :1], -100)], 1)  # <-- origin
    return {"ids": b["ids"], "labels": labels}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = B.TinyLM(), S.cat(B.lm_data(8, seed=7))
    return SCase(m, B.lm_loss, [collate(b, fix) for b in B.lm_data(60)], torch.optim.AdamW(m.parameters(), lr=5e-3),
                 quality=lambda c: S.in_eval(m, lambda: B.lm_loss(m, test)))
