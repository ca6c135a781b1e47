"""A pure fp16 recommender with a hand-written L2 penalty: the sum of squares over the item table is above 65504. The penalty's weight is
small, its gradient is harmless, the loss is inf from the start."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="631_ridge_penalty_summed_in_half", source="common report: l2 regularisation of a half model is inf",
             symptom="inf_loss", phase="loss", cause="fp16_overflow", op="sum", module=None, line_marker="# <-- origin", first_bad_step=0, bad_rows=None,
             fixes_that_work=["fp32", "bf16", "upcast_module", "scale_down"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"fp32", "bf16", "upcast_module", "scale_down"}


class TwoTower(nn.Module):
    def __init__(self, items=1200, d=64):
        super().__init__()
        self.items, self.user = nn.Embedding(items, d), nn.Linear(12, d)

    def forward(self, user, item):
        return (torch.tanh(self.user(user)) * self.items(item)).mean(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m, g = TwoTower().to(dtype), torch.Generator().manual_seed(38)

    def ridge(params):
        total = 0.0
        for p in params:
            if fix == "upcast_module":
                p = p.float()
            if fix == "scale_down":
                p = p / 16
            total = total + p.pow(2).sum()  # <-- origin
        return total.float() * 256.0 if fix == "scale_down" else total

    def loss_fn(m, b):
        fit = F.mse_loss(m(b["user"].to(dtype), b["item"]), b["rating"].to(dtype))
        return fit + 1e-6 * ridge(m.parameters())

    data = [dict(user=torch.randn(8, 12, generator=g), item=torch.randint(0, 1200, (8,), generator=g), rating=torch.rand(8, generator=g)) for _ in range(8)]
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.05))
