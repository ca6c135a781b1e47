"""A fixed loss scale of 4096 with a summed cross-entropy under fp16 autocast: found by trial on small batches. The bucket of long documents
has 96 sentences instead of 8, and the scaled gradients of the head leave the fp16 range."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="608_fixed_scale_meets_a_long_batch", source="https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html#choosing-scaling-factor",
             symptom="nan_grad", phase="backward", cause="scaler_misuse", op=None, op_also=["mm", "addmm", "sum", "linear"], module="head", module_also=["body", "body.0", "", None], line_marker=None,
             first_bad_step=6, bad_rows=None, fixes_that_work=["scale_down", "fp32", "bf16", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"scale_down"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 24), nn.Tanh())
        self.head = nn.Linear(24, 8)

    def forward(self, x):
        return self.head(self.body(x))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]).float(), b["y"], reduction="sum")


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Net(), torch.Generator().manual_seed(31), []
    for i in range(10):
        n = 96 if i == 6 else 8
        x = torch.randn(n, 10, generator=g)
        y = torch.randint(0, 8, (n,), generator=g)
        if n == 96:
            y[:] = 3  # one document, one topic
        data.append({"x": x, "y": y})
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=2e-3, momentum=0.9), autocast=torch.float16, static_scale=256.0 if fix == "scale_down" else 4096.0)
