"""A decoder with ALiBi, causal -inf and key padding -inf added together (-inf + -inf); right padding, so no row is empty."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="583_control_alibi_and_causal_minus_infinity", source="https://arxiv.org/abs/2108.12409", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[], nonfinite_in_passing=True)
FIXES = set()


class SelfAttention(nn.Module):
    def __init__(self, d, T):
        super().__init__()
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        pos = torch.arange(T)
        bias = -(pos[:, None] - pos[None, :]).float() * 0.25
        self.register_buffer("bias", bias.masked_fill(pos[None, :] > pos[:, None], -math.inf))

    def forward(self, x, pad):
        q, k, v = self.qkv(x).chunk(3, -1)
        key_bias = torch.zeros(pad.shape).masked_fill(pad, -math.inf)
        s = q @ k.mT / q.shape[-1] ** 0.5 + self.bias + key_bias[:, None]
        return self.o(s.softmax(-1) @ v)


class Decoder(nn.Module):
    def __init__(self, V=25, d=16, T=10):
        super().__init__()
        self.tok, self.ln, self.att, self.lm = nn.Embedding(V, d, padding_idx=0), nn.LayerNorm(d), SelfAttention(d, T), nn.Linear(d, V)

    def forward(self, ids):
        x = self.tok(ids)
        x = x + self.att(self.ln(x), ids == 0)
        return self.lm(x)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = Decoder()
    batches = []
    for _ in range(12):
        ids = torch.randint(1, 25, (5, 11))
        for r, n in enumerate(torch.randint(3, 11, (5,)).tolist()):
            ids[r, n:] = 0
        batches.append(ids)
    return Case(net, lambda m, ids: F.cross_entropy(m(ids[:, :-1]).transpose(1, 2), ids[:, 1:], ignore_index=0), batches, torch.optim.AdamW(net.parameters(), lr=2e-3))
