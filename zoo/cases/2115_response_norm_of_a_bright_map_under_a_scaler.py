"""Global response normalisation squares and sums a whole map in half precision. A bright picture passes 65504; the GradScaler takes the NaN for an ordinary overflow and leaves the step out."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2115_response_norm_of_a_bright_map_under_a_scaler", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="sum", op_also=["mul"], module="grn", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0], fixes_that_work=["fp32", "bf16", "upcast_module", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"upcast_module"}


class GRN(nn.Module):
    def __init__(s, c, fix):
        super().__init__()
        s.gain, s.shift, s.fix = nn.Parameter(0.1 * torch.ones(c, 1, 1)), nn.Parameter(torch.zeros(c, 1, 1)), fix

    def forward(s, x):
        if s.fix == "upcast_module":
            x = x.float()
        energy = (x * x).sum((2, 3), keepdim=True)  # <-- origin
        length = (energy + 1e-4).sqrt()
        share = length / (length.mean(1, keepdim=True) + 1e-4)
        return x + s.gain * (x * share) + s.shift


class Net(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.conv, s.grn, s.fc = nn.Conv2d(3, 8, 3, padding=1), GRN(8, fix), nn.Linear(8, 4)

    def forward(s, x):
        return s.fc(s.grn(F.gelu(s.conv(x))).mean((2, 3)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net(fix)
    g = torch.Generator().manual_seed(81)
    data = [dict(x=torch.rand(5, 3, 16, 16, generator=g), c=torch.randint(0, 4, (5,), generator=g)) for _ in range(10)]
    data[6]["x"][0] *= 120
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"]).float(), b["c"]), data, B.adam(m, 1e-3), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=256.0))
