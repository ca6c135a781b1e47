"""nn.MultiheadAttention pools a set with key_padding_mask; one sample's set is empty, all its keys are masked and softmax
over nothing but -inf is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1363_set_encoder_empty_set", source="https://github.com/pytorch/pytorch/issues/41508",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", op_also=["_softmax", "_safe_softmax"], module="pool", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[3], fixes_that_work=["sink_token", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"sink_token"}


class SetNet(nn.Module):
    sink = False

    def __init__(s):
        super().__init__()
        s.inp, s.pool, s.out = nn.Linear(5, 16), nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 3)
        s.seed, s.none = nn.Parameter(torch.randn(1, 1, 16) * 0.1), nn.Parameter(torch.zeros(1, 1, 16))

    def forward(s, x, pad):
        h = s.inp(x) + 0 * s.none
        if s.sink:
            h = torch.cat([s.none.expand(len(x), 1, 16), h], 1)
            pad = torch.cat([torch.zeros_like(pad[:, :1]), pad], 1)
        y, _ = s.pool(s.seed.expand(len(x), 1, 16), h, h, key_padding_mask=pad)  # <-- origin
        return s.out(y.squeeze(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"], b["pad"]), b["y"])


def make(seed=0, fix=None):
    m, g = SetNet(), torch.Generator().manual_seed(22)
    m.sink = bool(fix)
    data = []
    for _ in range(10):
        n = torch.randint(1, 8, (5, 1), generator=g)
        data.append(dict(x=torch.randn(5, 8, 5, generator=g), pad=torch.arange(8)[None] >= n, y=torch.randint(0, 3, (5,), generator=g)))
    data[6]["pad"][3] = True
    return Case(m, loss_fn, data, B.adam(m))
