"""MXFP8 by hand, but the shared exponent is that of the largest value's neighbour: it is taken from the block's mean.
In a block with one outlier the outlier is more than 240 times the mean's power of two: the cast gives NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="344_mxfp8_exponent_without_its_bias", source="https://arxiv.org/abs/2310.10537", symptom="nan_loss", phase="forward", cause="fp8_overflow",
             op="to_copy", op_also=["_to_copy", "to"], module="layers.0.quant", line_marker="# <-- origin", first_bad_step=7, bad_rows=[0],
             fixes_that_work=["current_scale", "clamp", "no_fp8", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "no_fp8", "current_scale"}


class Blocks(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def forward(self, x):
        if self.fix == "no_fp8":
            return x
        blocks = x.detach().reshape(len(x), -1, 512)
        level = blocks.abs().amax(-1, keepdim=True) / 240 if self.fix == "current_scale" else blocks.abs().mean(-1, keepdim=True)
        shared = torch.exp2(torch.ceil(torch.log2(level.clamp_min(1e-30))))
        scaled = blocks / shared
        if self.fix == "clamp":
            scaled = scaled.clamp(-240, 240)
        small = scaled.to(torch.float8_e4m3fnuz)  # <-- origin
        rounded = (small.to(x.dtype) * shared).reshape(x.shape)
        return x + (rounded - x).detach()


class Layer(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.quant, self.fc = Blocks(fix), nn.Linear(512, 8)

    def forward(self, x):
        return torch.tanh(self.fc(self.quant(x)))


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.layers, self.out = nn.ModuleList([Layer(fix)]), nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.layers[0](x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(fix), B.xy(10, d=512)
    data[7]["x"][0, 17] = 40000.0
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.adam(m, 1e-3))
