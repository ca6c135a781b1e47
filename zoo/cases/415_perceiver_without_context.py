"""Perceiver-style cross attention written with einsum: one sample of the batch has no context tokens at all."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="415_perceiver_without_context", source="common report: cross attention over an empty context",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", module="cross", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"finfo_min"}


class CrossAttention(nn.Module):
    def __init__(self, d, neg):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, d))
        self.kv, self.neg = nn.Linear(d, 2 * d), neg

    def weights(self, k, keep):
        s = torch.einsum("ld,btd->blt", self.latents, k) / math.sqrt(k.shape[-1])
        bias = torch.zeros_like(keep, dtype=s.dtype).masked_fill(~keep, self.neg)
        return torch.softmax(s + bias[:, None], dim=-1)  # <-- origin

    def forward(self, ctx, keep):
        k, v = self.kv(ctx).chunk(2, -1)
        return torch.einsum("blt,btd->bld", self.weights(k, keep), v)


class Perceiver(nn.Module):
    def __init__(self, neg):
        super().__init__()
        self.tok, self.cross = nn.Embedding(20, 8, padding_idx=0), CrossAttention(8, neg)
        self.out = nn.Linear(24, 5)

    def forward(self, ids):
        return self.out(self.cross(self.tok(ids), ids != 0).flatten(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = Perceiver(torch.finfo(torch.float32).min / 2 if fix == "finfo_min" else -math.inf)
    g, data = torch.Generator().manual_seed(15), []
    for _ in range(9):
        ids = torch.randint(1, 20, (5, 7), generator=g)
        for r, n in enumerate(torch.randint(2, 8, (5,), generator=g)):
            ids[r, n:] = 0
        data.append(dict(labels=ids[:, 0] % 5, context_ids=ids))
    data[6]["context_ids"][0] = 0
    return Case(net, lambda m, b: F.cross_entropy(m(b["context_ids"]), b["labels"]), data, B.adam(net, 2e-3), clip_norm=1.0)
