"""Cross-attention with nn.MultiheadAttention: one sample has no context at all, its key_padding_mask is all True, softmax over
an all -inf row is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="222_mha_sample_without_keys", source="https://github.com/pytorch/pytorch/issues/40932",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", op_also=["baddbmm"], module="decoder.cross", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[4], fixes_that_work=["sink_token", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"sink_token"}


class Decoder(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.cross, s.norm, s.out = nn.MultiheadAttention(d, 2, batch_first=True), nn.LayerNorm(d), nn.Linear(d, 5)

    def forward(s, q, ctx, pad):
        y, weights = s.cross(q, ctx, ctx, key_padding_mask=pad, need_weights=True)  # <-- origin
        return s.out(s.norm(q + y)), weights


class Reader(nn.Module):
    def __init__(s):
        super().__init__()
        s.query, s.doc, s.decoder, s.sink = nn.Embedding(20, 12), nn.Embedding(20, 12), Decoder(12), None

    def forward(s, q, doc, pad):
        ctx = s.doc(doc)
        if s.sink:
            ctx, pad = torch.cat([torch.zeros_like(ctx[:, :1]), ctx], 1), torch.cat([torch.zeros_like(pad[:, :1]), pad], 1)
        return s.decoder(s.query(q), ctx, pad)[0]


def loss_fn(m, b):
    return F.cross_entropy(m(b["q"], b["doc"], b["pad"]).flatten(0, 1), b["y"].flatten())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Reader(), torch.Generator().manual_seed(8)
    m.sink = fix == "sink_token"
    data = []
    for _ in range(9):
        n = torch.randint(1, 7, (5,), generator=g)
        data.append(dict(q=torch.randint(0, 20, (5, 3), generator=g), doc=torch.randint(0, 20, (5, 6), generator=g), pad=torch.arange(6)[None] >= n[:, None], y=torch.randint(0, 5, (5, 3), generator=g)))
    data[5]["pad"][4] = True                      # the retriever found nothing
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
