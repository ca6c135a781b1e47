"""CONTROL: a bidirectional encoder predicts tokens that were replaced by a mask symbol; it may look to the right. 85 percent of the labels are -100, and a few rows have none."""
import torch
import torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="588_control_masked_language_model_sees_both_sides", source="standard practice (BERT)", looks_like=["target_leak", "labels_mostly_masked"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.5)


def corrupt(bs, g):
    out = []
    for b in bs:
        hide = torch.rand(b["ids"].shape, generator=g) < 0.15
        hide[0, 5] = True
        out.append({"ids": b["ids"].masked_fill(hide, 0), "labels": b["ids"].masked_fill(~hide, -100)})
    return out


def logits(m, ids):
    return m(ids, mask=torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool))


def loss_fn(m, b):
    return F.cross_entropy(logits(m, b["ids"]).flatten(0, 1), b["labels"].flatten(), ignore_index=-100)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = B.TinyLM(d=32, n=2), torch.Generator().manual_seed(4)
    data, test = corrupt(B.lm_data(250, bs=6), g), corrupt(B.lm_data(10, seed=9, bs=6), g)
    test = {k: torch.cat([b[k] for b in test]) for k in test[0]}

    def quality(c):
        k = test["labels"] != -100
        return S.in_eval(m, lambda: (logits(m, test["ids"]).argmax(-1) != test["labels"])[k].float().mean())

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=3e-3), quality=quality)
