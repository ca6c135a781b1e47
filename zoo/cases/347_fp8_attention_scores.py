"""Attention whose scores are kept in e4m3fnuz to save memory. A trained temperature sharpens them; one sample repeats one
token, its scores pass 240 and are NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="347_fp8_attention_scores", source="https://arxiv.org/abs/2407.08608 (FlashAttention-3, FP8 with block scales)", symptom="nan_loss", phase="forward", cause="fp8_overflow",
             op="to_copy", op_also=["_to_copy", "to"], module="attn", line_marker="# <-- origin", first_bad_step=5, bad_rows=[2],
             fixes_that_work=["clamp", "no_fp8", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "no_fp8"}


class Attention(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        self.q, self.k, self.v, self.fix = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), fix

    def forward(self, x):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        if self.fix == "clamp":
            scores = scores.clamp(-240, 240)
        if self.fix != "no_fp8":
            small = scores.detach().to(torch.float8_e4m3fnuz)  # <-- origin
            scores = scores + (small.float() - scores).detach()
        return torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ self.v(x)


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.embed, self.attn, self.out = nn.Embedding(16, 16), Attention(16, fix), nn.Linear(16, 16)

    def forward(self, ids):
        return self.out(self.attn(self.embed(ids)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net(fix)
    with torch.no_grad():
        m.attn.k.weight.copy_(m.attn.q.weight)
        m.attn.k.bias.copy_(m.attn.q.bias)
        m.embed.weight[0] *= 30.0
    g = torch.Generator().manual_seed(5)
    data = [dict(ids=torch.randint(1, 16, (4, 8), generator=g)) for _ in range(9)]
    data[5]["ids"][2, 3:] = 0
    return Case(m, lambda m, b: F.cross_entropy(m(b["ids"])[:, :-1].flatten(0, 1), b["ids"][:, 1:].flatten()), data, B.adam(m, 1e-3))
