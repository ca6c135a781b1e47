"""Hardware-like fault: the top exponent bit of one element of the packed query/key/value projection flips before step 6."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="822_bitflip_in_the_packed_projection", source="https://arxiv.org/abs/2102.11245",
             symptom="nan_loss", phase="state", cause="transient_fault", op=None, module="encoder.layers.1.self_attn", line_marker=None,
             tensor="encoder.layers.1.self_attn.in_proj_weight", index=[37, 5], finite_but_huge=True, first_bad_step=6, bad_rows=None,
             fixes_that_work=["restore_weight"], fixes_that_do_not=["clip", "skip_batch", "lr_down"])
FIXES = {"restore_weight"}


class Tagger(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp = nn.Linear(6, 16)
        s.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False)
        s.out = nn.Linear(16, 4)

    def forward(s, x):
        return s.out(s.encoder(s.inp(x)))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]).flatten(0, 1), b["y"].flatten())


def make(seed=0, fix=None):
    m, g = Tagger(), torch.Generator().manual_seed(22)
    with torch.no_grad():
        m.encoder.layers[1].self_attn.in_proj_weight[37, 5] = 0.9
    data = [dict(x=torch.randn(4, 9, 6, generator=g), y=torch.randint(0, 4, (4, 9), generator=g)) for _ in range(10)]

    def flip(case, i):
        if i == 6 and not fix:
            w = case.model.encoder.layers[1].self_attn.in_proj_weight.data.view(torch.int32)
            w[37, 5] ^= 1 << 30

    return Case(m, loss_fn, data, B.adam(m), before_step=flip)
