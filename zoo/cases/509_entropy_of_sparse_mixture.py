"""Mixture weights relu(x)/sum(relu(x)) are sometimes exactly 0: torch.special.entr(0) = 0, its slope there is infinite."""
import torch
import torch.nn as nn
from protocol import Case

TRUTH = dict(id="509_entropy_of_sparse_mixture", source="written for this set, after a kind of report often seen: gradient of special.entr at 0",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="special_entr", op_also=["div", "mul", "log"], module=None,
             line_marker="# <-- origin", first_bad_step=5, bad_rows=[0, 3], fixes_that_work=["clamp", "eps", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "eps"}


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        nn.init.constant_(self.gate.bias, 2.0)
        nn.init.constant_(self.gate.weight, 0.1)
        self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

    def forward(self, x, route):
        w = torch.relu(self.gate(x) + route)
        w = w / w.sum(-1, keepdim=True)
        y = torch.cat([e(x) for e in self.experts], dim=-1)
        return (w * y).sum(-1), w


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = Mixture()

    def objective(model, batch):
        pred, w = model(batch["x"], batch["route"])
        if fix == "clamp":
            w = w.clamp(min=1e-6)
        elif fix == "eps":
            w = w + 1e-6
        diversity = torch.special.entr(w).sum(-1).mean()  # <-- origin
        return nn.functional.mse_loss(pred, batch["y"]) - 0.01 * diversity

    batches = [{"x": torch.randn(5, 4), "route": torch.zeros(5, 3), "y": torch.randn(5)} for _ in range(9)]
    batches[5]["route"][0, 1] = -8.0
    batches[5]["route"][3, 2] = -8.0
    return Case(model, objective, batches, torch.optim.Adam(model.parameters(), lr=1e-3))
