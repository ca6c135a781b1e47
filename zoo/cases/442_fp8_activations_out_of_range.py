"""Training with activations stored in float8 e4m3fnuz (the format of some accelerators) at a fixed scale: one sample
has a count above 240, and the cast has no infinity to give, only NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="442_fp8_activations_out_of_range", source="https://arxiv.org/abs/2209.05433 (E4M3 has no infinities; saturate before casting)", symptom="nan_loss", phase="forward", cause="fp8_overflow",
             op="to_copy", op_also=["_to_copy", "to", "copy_", "copy"], module="body.fc1.quant", line_marker="# <-- origin", first_bad_step=5, bad_rows=[2],
             fixes_that_work=["clamp", "scale_down", "upcast_module", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "scale_down", "upcast_module"}


class Quant(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def forward(self, x):
        if self.fix == "upcast_module":
            return x
        k = 64.0 if self.fix == "scale_down" else 1.0
        y = x / k
        if self.fix == "clamp":
            y = y.clamp(-240, 240)
        q = y.detach().to(torch.float8_e4m3fnuz)  # <-- origin
        return x + (q.to(x.dtype) * k - x).detach()


class FP8Linear(nn.Module):
    def __init__(self, i, o, fix):
        super().__init__()
        self.quant, self.lin = Quant(fix), nn.Linear(i, o)

    def forward(self, x):
        return self.lin(self.quant(x))


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.body = nn.ModuleDict(dict(fc1=FP8Linear(8, 16, fix), fc2=FP8Linear(16, 1, fix)))

    def forward(self, x):
        return self.body["fc2"](torch.tanh(self.body["fc1"](x) / 60))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(fix), B.xy(8, scale=60.0)
    for b in data:
        b["x"].clamp_(-220, 220)
    data[5]["x"][2, 3] = 290.0
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.adam(m, 1e-3))
