"""CONTROL: LoRA starts with B = 0, so in the first step every A has a gradient of exactly zero; from the second step on it learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="288_control_lora_first_step", source="https://arxiv.org/abs/2106.09685", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class LoRA(nn.Module):
    def __init__(s, base, r=2):
        super().__init__()
        s.base, s.A, s.Bm = base.requires_grad_(False), nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(s.Bm.weight)

    def forward(s, x):
        return s.base(x) + 2 * s.Bm(s.A(x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(d=16)
    m.requires_grad_(False)
    for l in m.layers:
        l.attn.q, l.attn.v, l.ffn.wo = LoRA(l.attn.q), LoRA(l.attn.v), LoRA(l.ffn.wo)
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=5e-3)
    return Case(m, B.lm_loss, B.lm_data(12), opt, healthy=lambda log: log[0].grads["layers.0.attn.q.A.weight"] == 0 and log[2].grads["layers.0.attn.q.A.weight"] > 0)
