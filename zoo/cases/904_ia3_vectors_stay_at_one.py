"""IA3-style tuning of a bfloat16 model: the only trainable weights are scaling vectors that start at one. A step of 1e-3 is less than
half an ulp there, so AdamW never moves any of them."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="904_ia3_vectors_stay_at_one", source="written for this set after a common mistake; no single report",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, module=None, module_also=["layers.0.ffn", "layers.1.ffn"], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["fp32", "lr_up"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "lr_up"}


class ScaledFFN(B.FFN):
    def __init__(s, d):
        super().__init__(d)
        s.l_ff = nn.Parameter(torch.ones(4 * d))

    def forward(s, x):
        return s.wo(F.gelu(s.wi(x)) * s.l_ff)


def make(seed=0, fix=None):
    m = B.TinyLM(ffn=ScaledFFN)
    m.requires_grad_(False)
    for layer in m.layers:
        layer.ffn.l_ff.requires_grad_(True)
    if fix != "fp32":
        m = m.bfloat16()
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=5e-2 if fix == "lr_up" else 1e-3, weight_decay=0.0)
    return Case(m, B.lm_loss, B.lm_data(12), opt, healthy=lambda log: all(r.update_norm > 0 for r in log))
