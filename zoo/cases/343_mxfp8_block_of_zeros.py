"""MXFP8 by hand: blocks of eight share a power of two from floor(log2(largest)). A sample of silence gives a block of
zeros, log2(0) is -inf, the shared scale is 0 and 0 / 0 is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="343_mxfp8_block_of_zeros", source="https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf", symptom="nan_loss", phase="forward", cause="zero_division", cause_also=["log_zero"],
             op="div", op_also=["log2"], module="quant", line_marker="# <-- origin", line_also=["# <-- the logarithm"], first_bad_step=5, bad_rows=[4],
             fixes_that_work=["eps", "clamp", "no_fp8", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp", "no_fp8"}


class Blocks(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def forward(self, x):
        if self.fix == "no_fp8":
            return x
        blocks = x.detach().reshape(len(x), -1, 8)
        amax = blocks.abs().amax(-1, keepdim=True)
        if self.fix in ("eps", "clamp"):
            amax = amax.clamp_min(1e-30)
        exponent = torch.floor(torch.log2(amax)) - 8  # <-- the logarithm
        shared = torch.exp2(exponent)
        small = (blocks / shared).clamp(-448, 448).to(torch.float8_e4m3fn)  # <-- origin
        rounded = (small.to(x.dtype) * shared).reshape(x.shape)
        return x + (rounded - x).detach()


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.quant, self.fc1, self.fc2 = Blocks(fix), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(self.quant(x))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(fix), B.xy(9, d=16)
    data[5]["x"][4, 8:] = 0.0
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.adam(m, 1e-3))
