"""Adamax over fp16 weights: filters that look at an always-black border get a zero gradient, and the infinity norm plus eps=1e-8 is zero."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="444_adamax_in_half_precision", source="https://github.com/pytorch/pytorch/issues/8860", symptom="nan_param", phase="optimizer", cause="optimizer_eps_underflow",
             op="addcdiv", op_also=["div", "foreach_addcdiv", "foreach_div"], module=None, module_also=["patch"], line_marker=None, first_bad_step=0, bad_rows=None,
             fixes_that_work=["eps", "fp32", "bf16"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "fp32", "bf16"}


class Patch(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.out = nn.Conv2d(1, 4, 8), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.patch(x)).flatten(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dt = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m, g, data = Patch().to(dt), torch.Generator().manual_seed(5), []
    for _ in range(6):
        x = torch.rand(4, 1, 8, 8, generator=g)
        x[..., 0] = x[..., -1] = 0.0
        data.append((x, torch.randint(0, 3, (4,), generator=g)))
    opt = torch.optim.Adamax(m.parameters(), lr=1e-3, eps=1e-4 if fix == "eps" else 1e-8)
    return Case(m, lambda m, b: F.cross_entropy(m(b[0].to(dt)).float(), b[1]), data, opt)
