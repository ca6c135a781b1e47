"""CONTROL: scaled_dot_product_attention with padded queries that may attend to nothing: current PyTorch returns zeros for such rows."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="293_control_sdpa_fully_masked_row", source="https://github.com/pytorch/pytorch/issues/41508 (cured in scaled_dot_product_attention)", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Sdpa(B.Attention):
    def forward(s, x, mask=None):
        q, k, v = s.heads(s.q(x)), s.heads(s.k(x)), s.heads(s.v(x))
        return s.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


def loss_fn(m, b):
    t = b["ids"].shape[1]
    mask = torch.ones(t, t, dtype=torch.bool).tril()[None, None] & b["attn"][:, None, None, :]
    lg = m(b["ids"], mask)
    return F.cross_entropy(lg[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten(), ignore_index=-100)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.TinyLM(d=16, attn=Sdpa), B.lm_data(12)
    for i, b in enumerate(data):
        b["attn"] = torch.ones(4, 12, dtype=torch.bool)
        b["attn"][i % 4, :5], b["labels"][i % 4, :6] = False, -100      # left padding
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
