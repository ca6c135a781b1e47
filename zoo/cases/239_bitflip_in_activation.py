"""Hardware-like fault: one activation of the second block is corrupted once, in the forward pass of step 5. Weights, batch and
code are innocent; a second look at the same step finds nothing."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="239_bitflip_in_activation", source="https://arxiv.org/abs/2102.11245",
             symptom="nan_loss", phase="forward", cause="transient_fault", op=None, module="blocks.1.fc", line_marker=None, first_bad_step=5, bad_rows=None,
             fixes_that_work=["recompute_step", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"recompute_step"}


class ResBlock(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.norm, s.fc = nn.LayerNorm(d), nn.Linear(d, d)

    def forward(s, x):
        return x + torch.relu(s.fc(s.norm(x)))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.blocks, s.out = nn.Linear(8, 16), nn.ModuleList(ResBlock(16) for _ in range(3)), nn.Linear(16, 1)

    def forward(s, x):
        x = s.inp(x)
        for blk in s.blocks:
            x = blk(x)
        return s.out(x)


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, fault = Net(), dict(armed=False)

    def corrupt(module, args, out):
        if fault["armed"]:
            fault["armed"] = False                # it happens once: neither a replay nor a later step sees it again
            with torch.no_grad():
                hit = int(((out >= 1) & (out < 2)).flatten().nonzero()[0])
                out.view(torch.int32).view(-1)[hit] ^= 1 << 30

    m.blocks[1].fc.register_forward_hook(corrupt)

    def arm(case, i):
        fault["armed"] = i == 5 and fix is None

    return Case(m, loss_fn, B.xy(9, bs=12), B.adam(m), before_step=arm)
