"""CONTROL: the causal mask is a registered buffer full of -inf, as in many GPT implementations: a non-finite buffer on purpose, with weight tying."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="292_control_neg_inf_mask_buffer", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, nonfinite_in_passing=True, fixes_that_work=[], fixes_that_do_not=[])


class Attn(nn.Module):
    def __init__(s, d, t=16):
        super().__init__()
        s.qkv, s.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.register_buffer("bias", torch.full((t, t), float("-inf")).triu(1))

    def forward(s, x, mask=None):
        t = x.shape[1]
        q, k, v = s.qkv(x).chunk(3, -1)
        return s.proj(torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + s.bias[:t, :t], -1) @ v)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(d=16, attn=Attn)
    m.lm_head.weight = m.embed.weight
    return Case(m, B.lm_loss, B.lm_data(12), B.adam(m, 3e-3), healthy=lambda log: all(r.loss_ok and r.grad_ok and r.param_ok and r.state_ok for r in log))
