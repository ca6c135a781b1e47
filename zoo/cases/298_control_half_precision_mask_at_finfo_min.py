"""CONTROL: fp16 autocast attention masked with the most negative fp16 number: values sit at the edge of the range on purpose."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="298_control_half_precision_mask_at_finfo_min", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Attn(B.Attention):
    def forward(s, x, mask=None):
        q, k, v = s.heads(s.q(x)), s.heads(s.k(x)), s.heads(s.v(x))
        a = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
        a = a.masked_fill(~mask, torch.finfo(a.dtype).min)
        return s.o((torch.softmax(a, -1).to(v.dtype) @ v).transpose(1, 2).flatten(2))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.TinyLM(d=16, n=1, attn=Attn)
    return Case(m, B.lm_loss, B.lm_data(12), B.adam(m, 3e-3), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=256.))
