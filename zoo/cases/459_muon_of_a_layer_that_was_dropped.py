"""A hand-written Muon-like optimizer normalises each gradient by its norm: the step in which stochastic depth multiplies a block by zero gives it a zero
gradient, and 0/0 goes into the weights."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="459_muon_of_a_layer_that_was_dropped", source="common report: gradient normalisation without eps", symptom="nan_param", phase="optimizer", cause="zero_division",
             op="div", module=None, module_also=["blocks.1.fc1", "blocks.1.fc2", "blocks.1"], line_marker="# <-- origin", first_bad_step=3, bad_rows=None,
             fixes_that_work=["eps", "clamp"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads", "skip_batch"])
FIXES = {"eps", "clamp"}


def orthogonal(g, fix, steps=3):
    n = g.norm()
    n = n + 1e-7 if fix == "eps" else n.clamp(min=1e-7) if fix == "clamp" else n
    x = g / n  # <-- origin
    for _ in range(steps):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, fix=None):
        super().__init__(params, dict(lr=lr))
        self.fix = fix

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(orthogonal(p.grad, self.fix) if p.dim() == 2 else p.grad, alpha=group["lr"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.out = nn.ModuleList(B.mlp(8, 12, 8) for _ in range(2)), nn.Linear(8, 1)

    def forward(self, x, keep):
        for b, k in zip(self.blocks, keep, strict=True):
            x = x + k * b(x)
        return self.out(x)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(7)
    for i, b in enumerate(data):
        b["keep"] = torch.tensor([1.0, 0.0 if i == 3 else 1.0])
    return Case(m, lambda m, b: F.mse_loss(m(b["x"], b["keep"]), b["y"]), data, Muon(m.parameters(), fix=fix))
