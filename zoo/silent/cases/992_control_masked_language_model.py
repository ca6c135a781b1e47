"""CONTROL: masked language model: every position sees every other, labels are not shifted, four fifths of them are -100, and padding is masked as a key. All of that is how it has to be."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="992_control_masked_language_model", source="standard practice", looks_like=["target_leak", "label_shift", "labels_mostly_masked", "padding_in_loss"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.9)
V, T, MASK, PAD = 18, 12, 1, 0


def mlm(n, seed, bs=16):
    g, out = torch.Generator().manual_seed(100 + seed), []
    for b in B.lm_data(n, bs=bs, T=T, V=V, seed=seed):
        keep = torch.arange(T) < torch.randint(8, T + 1, (bs, 1), generator=g)
        ids = b["ids"] * keep
        hide = (torch.rand(bs, T, generator=g) < 0.2) & keep
        hide[:, 3] = True                          # at least one per row
        out.append({"ids": ids.masked_fill(hide, MASK), "labels": ids.masked_fill(~hide, -100), "attention_mask": keep})
    return out


def loss_fn(m, b):
    lg = m(b["ids"], b["attention_mask"][:, None, None, :])
    return F.cross_entropy(lg.flatten(0, 1), b["labels"].flatten(), ignore_index=-100)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = B.TinyLM(V=V, d=32, n=2), S.cat(mlm(8, 9))
    return SCase(m, loss_fn, mlm(200, 0), torch.optim.AdamW(m.parameters(), lr=4e-3), quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
