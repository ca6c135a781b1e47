"""A hand-written loss scale is multiplied by 8 after every batch and nothing ever lowers it: at step 5 the scaled gradients
leave the fp16 range, and from then on every step overflows."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="208_home_made_scale_never_backs_off", source="https://github.com/open-mmlab/mmdetection/issues/3690",
             symptom="nan_grad", phase="backward", cause="scaler_misuse", op="to_copy", op_also=["_to_copy", "to", "mul", "mm", "addmm", "convolution"], module=None, module_also=["", "cls"],
             line_marker="# <-- origin", first_bad_step=5, bad_rows=None, fixes_that_work=["fp32", "bf16", "back_off", "scale_down"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"back_off", "scale_down"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem, s.body, s.cls = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)

    def forward(s, x):
        return s.cls(F.relu(s.body(F.relu(s.stem(x)))).mean([2, 3]))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]).float(), b["y"])  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(7)
    data = [dict(x=torch.randn(6, 1, 8, 8, generator=g), y=torch.randint(0, 4, (6,), generator=g)) for _ in range(12)]

    def grow(case, i):
        if i and fix != "scale_down":
            case.static_scale *= 8.0
            if fix == "back_off":
                case.static_scale = min(case.static_scale, 4096.0)

    return Case(m, loss_fn, data, B.adam(m), autocast=torch.float16, static_scale=32.0, before_step=grow)
