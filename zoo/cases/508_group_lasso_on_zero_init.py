"""Group lasso written as sqrt(sum(w^2)) over the rows of every layer; the adapter's up-projection starts at zero, as adapters do."""
import torch
from torch import nn
import torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="508_group_lasso_on_zero_init", source="written for this set, after a kind of report often seen: group lasso on zero init",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="sqrt", op_also=["pow", "mul", "div"], module=None, line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "vector_norm"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "vector_norm"}


class Adapter(nn.Module):
    def __init__(self, d, r):
        super().__init__()
        self.down, self.up = nn.Linear(d, r), nn.Linear(r, d)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return x + self.up(F.silu(self.down(x)))


def group_lasso(model, fix):
    total = 0.0
    for name, w in model.named_parameters():
        if w.dim() == 2:
            if fix == "vector_norm":
                total = total + torch.linalg.vector_norm(w, dim=1).sum()
                continue
            sq = w.pow(2).sum(1)
            if fix == "eps":
                sq = sq + 1e-10
            total = total + sq.sqrt().sum()  # <-- origin
    return total


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, 16), Adapter(16, 4), nn.LayerNorm(16), nn.Linear(16, 3))
    loss_fn = lambda m, b: F.cross_entropy(m(b[0]), b[1]) + 1e-4 * group_lasso(m, fix)
    batches = [(torch.randn(12, 10), torch.randint(0, 3, (12,))) for _ in range(7)]
    return Case(model, loss_fn, batches, torch.optim.AdamW(model.parameters(), lr=2e-3))
