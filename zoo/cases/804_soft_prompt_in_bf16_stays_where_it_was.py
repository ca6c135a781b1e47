"""Prompt tuning: the only trainable tensor is a soft prompt copied from (large) word embeddings and kept in bfloat16. Every AdamW
update is below half an ulp, so the prompt is bit for bit what it was."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="804_soft_prompt_in_bf16_stays_where_it_was", source="written for this set after a common mistake; no single report",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, module="prompt", line_marker=None, tensor="prompt.weight",
             first_bad_step=0, bad_rows=None, fixes_that_work=["fp32", "lr_up"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "lr_up"}


class Prompted(nn.Module):
    def __init__(s, n=4):
        super().__init__()
        s.lm = B.TinyLM(T=24)
        with torch.no_grad():
            s.lm.embed.weight.mul_(6.0).add_(torch.sign(s.lm.embed.weight) * 4.0)
        s.lm.requires_grad_(False)
        s.prompt = nn.Embedding(n, 32)
        s.prompt.weight.data.copy_(s.lm.embed.weight[2:2 + n])

    def forward(s, ids):
        p = s.prompt(torch.arange(s.prompt.num_embeddings))[None].expand(len(ids), -1, -1)
        x = torch.cat([p, s.lm.embed(ids)], 1)
        t = x.shape[1]
        x = x + s.lm.pos(torch.arange(t))
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        for layer in s.lm.layers:
            x = layer(x, mask)
        return s.lm.lm_head(s.lm.norm(x))[:, s.prompt.num_embeddings:]


def make(seed=0, fix=None):
    m = Prompted()
    if fix != "fp32":
        m = m.bfloat16()
    opt = torch.optim.AdamW([m.prompt.weight], lr=0.3 if fix == "lr_up" else 3e-3, weight_decay=0.0)
    return Case(m, B.lm_loss, B.lm_data(12), opt, healthy=lambda log: all(r.update_norm > 0 for r in log))
