"""Hardware-like fault: the top exponent bit of one tap of a transposed convolution flips before step 5."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="926_bitflip_in_a_decoder_filter", source="https://arxiv.org/abs/2102.11245",
             symptom="inf_loss", phase="state", cause="transient_fault", op=None, module="decoder.up", line_marker=None,
             tensor="decoder.up.weight", index=[2, 3, 1, 0], finite_but_huge=True, first_bad_step=5, bad_rows=None,
             fixes_that_work=["restore_weight"], fixes_that_do_not=["clip", "skip_batch", "lr_down"])
FIXES = {"restore_weight"}


class AE(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder = nn.ModuleDict(dict(c1=nn.Conv2d(1, 8, 3, stride=2, padding=1), c2=nn.Conv2d(8, 8, 3, padding=1)))
        s.decoder = nn.ModuleDict(dict(up=nn.ConvTranspose2d(8, 8, 2, stride=2), out=nn.Conv2d(8, 1, 3, padding=1)))

    def forward(s, x):
        h = F.elu(s.encoder.c2(F.elu(s.encoder.c1(x)))) + 1.0
        return s.decoder.out(F.elu(s.decoder.up(h)))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["x"])


def make(seed=0, fix=None):
    m, g = AE(), torch.Generator().manual_seed(26)
    with torch.no_grad():
        m.decoder.up.weight[2, 3, 1, 0] = 0.6
    data = [dict(x=torch.rand(4, 1, 8, 8, generator=g)) for _ in range(9)]

    def flip(case, i):
        if i == 5 and not fix:
            w = case.model.decoder.up.weight.data.view(torch.int32)
            w[2, 3, 1, 0] ^= 1 << 30

    return Case(m, loss_fn, data, B.adam(m), before_step=flip)
