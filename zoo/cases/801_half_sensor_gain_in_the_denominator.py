"""Half-precision calibration net divides by a learned sensor gain; for a very insensitive sensor the quotient is fine but the
derivative with respect to the gain, x / gain^2, leaves the fp16 range."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="801_half_sensor_gain_in_the_denominator", source="written for this set after a common mistake; no single report",
             symptom="nan_grad", phase="backward", cause="fp16_overflow", op="div", op_also=["mul", "neg"], module="calib", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[2], fixes_that_work=["fp32", "bf16", "upcast_module", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "bf16", "upcast_module"}


class Calibration(nn.Module):
    wide = False

    def __init__(s):
        super().__init__()
        s.log2_gain = nn.Embedding(12, 1)
        with torch.no_grad():
            s.log2_gain.weight.copy_(torch.linspace(-1, 1, 12)[:, None])
            s.log2_gain.weight[11] = -11.0

    def forward(s, x, sensor):
        if s.wide:
            return (x.float() / torch.exp2(s.log2_gain(sensor).float())).to(x.dtype)
        gain = torch.exp2(s.log2_gain(sensor))
        return x / gain  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.calib, s.body = Calibration(), B.mlp(8, 24, 1)

    def forward(s, x, sensor):
        return s.body(s.calib(x, sensor))


def loss_fn(m, b):
    out = m(b["x"].to(m.body.fc1.weight.dtype), b["sensor"])
    return F.smooth_l1_loss(out.float(), b["y"])


def make(seed=0, fix=None):
    m, data, g = Net(), B.xy(11), torch.Generator().manual_seed(81)
    with torch.no_grad():
        m.body.fc1.weight.mul_(0.02)
    m = m.to({"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16))
    m.calib.wide = fix == "upcast_module"
    for b in data:
        b["sensor"] = torch.randint(0, 11, (6,), generator=g)
    data[7]["sensor"][2] = 11
    data[7]["x"][2] = torch.tensor([9.0, -7.0, 8.0, 6.0, -9.0, 7.0, 5.0, -8.0])
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-3))
