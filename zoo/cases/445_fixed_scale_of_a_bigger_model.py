"""A fixed loss scale of 2^22, copied from another project, over fp16 autocast: the scaled gradient is out of range at once."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="445_fixed_scale_of_a_bigger_model", source="https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html#choosing-scaling-factor", symptom="nan_grad", phase="backward",
             cause="scaler_misuse", op=None, module="head", module_also=["body.3", "body", "", None, "body.0"], line_marker=None, first_bad_step=0, bad_rows=None,
             fixes_that_work=["scale_down", "fp32", "bf16"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"scale_down"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(5)
    data = [dict(image=torch.rand(4, 1, 8, 8, generator=g), label=torch.randint(0, 3, (4,), generator=g)) for _ in range(6)]
    return Case(m, lambda m, b: F.cross_entropy(m(b["image"]).float(), b["label"]), data, B.adam(m, 1e-3), autocast=torch.float16, static_scale=2.0**8 if fix == "scale_down" else 2.0**22)
