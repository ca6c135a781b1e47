"""Progressive growing: the third block is built with the rest but its layer scale comes from torch.empty and reset_parameters was never
called for it. The block joins the network at step 6."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="922_layer_scale_of_a_block_that_slept", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="blocks.2", line_marker=None, tensor="blocks.2.gamma", tensor_kind="parameter",
             first_bad_step=6, latent_from=0, bad_rows=None, fixes_that_work=["init"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"init"}


def empty(n):
    t = torch.empty(n)
    t.view(torch.int32).fill_(-1)                  # whatever the allocator left there: here, always the same
    return t


class GrowBlock(nn.Module):
    def __init__(s, d, init):
        super().__init__()
        s.norm, s.fc = nn.LayerNorm(d), nn.Linear(d, d)
        s.gamma = nn.Parameter(torch.full((d,), 0.1) if init else empty(d))

    def forward(s, x):
        return x + s.gamma * F.gelu(s.fc(s.norm(x)))


class Growing(nn.Module):
    depth = 2

    def __init__(s, fix):
        super().__init__()
        s.inp, s.blocks, s.out = nn.Linear(8, 16), nn.ModuleList([GrowBlock(16, i < 2 or fix == "init") for i in range(3)]), nn.Linear(16, 1)

    def forward(s, x):
        h = s.inp(x)
        for blk in s.blocks[:s.depth]:
            h = blk(h)
        return s.out(h)


def make(seed=0, fix=None):
    m = Growing(fix)

    def grow(case, i):
        case.model.depth = 3 if i >= 6 else 2

    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), B.xy(11), B.adam(m), before_step=grow)
