"""A home-made optimizer standardises every gradient by its standard deviation after a warm-up of four steps; the scalar temperature is one number, and the spread of one number is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2033_gradient_divided_by_its_own_spread", source="written for the unseen set, no public report",
             symptom="nan_param", phase="optimizer", cause="empty_reduction", op="std", module="", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=None, fixes_that_work=["guard"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"guard"}


class Standard(torch.optim.Optimizer):
    def __init__(s, params, lr, fix):
        super().__init__(params, dict(lr=lr))
        s.t, s.fix = 0, fix

    @torch.no_grad()
    def step(s, closure=None):
        s.t += 1
        for group in s.param_groups:
            for p in group["params"]:
                g = p.grad
                if g is None:
                    continue
                if s.t > 4 and not (s.fix == "guard" and g.numel() < 2):
                    g = g / (g.std() + 1e-8)  # <-- origin
                p.add_(g, alpha=-group["lr"])


class Proto(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.proto, s.temperature = B.mlp(8, 24, 12), nn.Parameter(torch.randn(4, 12)), nn.Parameter(torch.tensor([1.0]))

    def forward(s, x):
        return F.normalize(s.enc(x), dim=-1) @ F.normalize(s.proto, dim=-1).T * s.temperature.exp()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Proto()
    g = torch.Generator().manual_seed(61)
    data = [dict(x=torch.randn(10, 8, generator=g), y=torch.randint(0, 4, (10,), generator=g)) for _ in range(9)]
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), data, Standard(m.parameters(), 1e-3, fix))
