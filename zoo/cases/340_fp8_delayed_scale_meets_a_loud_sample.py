"""Float8 linear layers with delayed scaling: the scale is that of the largest activation of the last four batches. One
sample is thirty times as loud, and the cast to e4m3fnuz has no infinity to give, only NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="340_fp8_delayed_scale_meets_a_loud_sample", source="https://github.com/NVIDIA/TransformerEngine/issues/2119 (delayed scaling, overflow after a jump)", symptom="nan_loss", phase="forward", cause="fp8_overflow",
             op="to_copy", op_also=["_to_copy", "to"], module="body.fc1", line_marker="# <-- origin", first_bad_step=6, bad_rows=[1],
             fixes_that_work=["current_scale", "clamp", "no_fp8", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"current_scale", "clamp", "no_fp8"}
TOP = 240.0


class Float8Linear(nn.Linear):
    def __init__(self, i, o, fix):
        super().__init__(i, o)
        self.fix = fix
        self.register_buffer("amax_history", torch.full((4,), 4.0))

    def forward(self, x):
        if self.fix == "no_fp8":
            return super().forward(x)
        amax = x.detach().abs().amax()
        scale = TOP / (amax if self.fix == "current_scale" else 2 * self.amax_history.amax())
        self.amax_history = torch.roll(self.amax_history, 1)
        self.amax_history[0] = amax
        scaled = x.detach() * scale
        if self.fix == "clamp":
            scaled = scaled.clamp(-TOP, TOP)
        small = scaled.to(torch.float8_e4m3fnuz)  # <-- origin
        rounded = small.to(x.dtype) / scale
        return super().forward(x + (rounded - x).detach())


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.body = nn.ModuleDict(dict(fc1=Float8Linear(8, 16, fix), fc2=Float8Linear(16, 1, fix)))

    def forward(self, x):
        return self.body["fc2"](torch.tanh(self.body["fc1"](x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(fix), B.xy(10)
    data[6]["x"][1] *= 30.0
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.adam(m, 1e-3))
