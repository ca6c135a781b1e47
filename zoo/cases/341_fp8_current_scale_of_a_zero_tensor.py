"""Float8 with a scale from the tensor's own maximum and no floor under it: in one batch a gated branch is zero
everywhere, its scale is 448 / 0 and zero times infinity is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="341_fp8_current_scale_of_a_zero_tensor", source="https://github.com/pytorch/ao/blob/main/torchao/float8/float8_utils.py (EPS under amax)", symptom="nan_loss", phase="forward", cause="zero_division",
             op="div", op_also=["reciprocal", "mul"], module="gated", line_marker="# <-- origin", first_bad_step=5, bad_rows=None,
             fixes_that_work=["eps", "clamp", "no_fp8", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp", "no_fp8"}


class Float8Linear(nn.Linear):
    def __init__(self, i, o, fix):
        super().__init__(i, o)
        self.fix = fix

    def forward(self, x):
        if self.fix == "no_fp8":
            return super().forward(x)
        amax = x.detach().abs().amax()
        if self.fix in ("eps", "clamp"):
            amax = amax.clamp_min(1e-12)
        scale = 448.0 / amax  # <-- origin
        rounded = (x.detach() * scale).to(torch.float8_e4m3fn).to(x.dtype) / scale
        return super().forward(x + (rounded - x).detach())


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.plain, self.gated, self.out = nn.Linear(8, 16), Float8Linear(8, 16, fix), nn.Linear(16, 1)

    def forward(self, x, gate):
        return self.out(torch.tanh(self.plain(x) + self.gated(x * gate[:, None])))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(fix), B.xy(9)
    g = torch.Generator().manual_seed(3)
    for b in data:
        b["gate"] = (torch.rand(6, generator=g) > 0.3).float()
        b["gate"][0] = 1.0
    data[5]["gate"].zero_()
    return Case(m, lambda m, b: F.mse_loss(m(b["x"], b["gate"]), b["y"]), data, B.adam(m, 1e-3))
