"""CONTROL: masked language modelling: 85 % of the labels are -100 on purpose, some rows have no label at all, inputs and labels differ where it counts; attention is not causal."""
import torch, torch.nn.functional as F
import blocks as B
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1186_control_masked_language_model", source="standard practice", looks_like=["labels_mostly_masked", "target_leak", "label_shift"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=1.0)
MASK = 1


def mask(batches, seed=0, p=0.15):
    g = torch.Generator().manual_seed(700 + seed)
    for b in batches:
        hit = torch.rand(b["ids"].shape, generator=g) < p
        hit[0, 5] = True                           # never a batch without any label
        b["labels"], b["ids"] = b["ids"].masked_fill(~hit, -100), b["ids"].masked_fill(hit, MASK)
    return batches


class BiLM(B.TinyLM):
    def forward(s, ids):
        return super().forward(ids, torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]).flatten(0, 1), b["labels"].flatten(), ignore_index=-100)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = BiLM(), S.cat(mask(B.lm_data(8, bs=16, seed=7), 7))
    return SCase(m, loss_fn, mask(B.lm_data(140, bs=32)), torch.optim.AdamW(m.parameters(), lr=1e-2), quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
