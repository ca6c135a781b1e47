"""A residual stack without norms under fp16 autocast: every block adds a little gain, and an overexposed frame in raw sensor counts
takes the third convolution out of the half range."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="900_half_convolution_of_an_overexposed_frame", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="convolution", op_also=["conv2d", "mkldnn_convolution", "slow_conv2d_forward"],
             module="stages.2.conv", line_marker="# <-- origin", first_bad_step=6, bad_rows=[1],
             fixes_that_work=["bf16", "fp32", "upcast_module", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"upcast_module"}


class Stage(nn.Module):
    wide = False

    def __init__(s, c):
        super().__init__()
        s.conv = nn.Conv2d(c, c, 3, padding=1, bias=False)
        with torch.no_grad():
            s.conv.weight.abs_().mul_(2.0)

    def forward(s, x):
        if s.wide:
            with torch.autocast("cpu", enabled=False):
                return F.relu(s.conv(x.float()))
        return F.relu(s.conv(x))  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem = nn.Conv2d(1, 6, 3, padding=1)
        s.stages = nn.ModuleList([Stage(6) for _ in range(3)])
        s.norm, s.head = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(s, x):
        h = F.relu(s.stem(x))
        for st in s.stages:
            h = st(h)
        return s.head(s.norm(h.float().mean([2, 3])))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]).float(), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(0)
    for st in m.stages:
        st.wide = fix == "upcast_module"
    data = [dict(x=torch.rand(4, 1, 8, 8, generator=g), y=torch.randint(0, 3, (4,), generator=g)) for _ in range(10)]
    data[6]["x"][1] = 4095.0
    return Case(m, loss_fn, data, B.adam(m), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
