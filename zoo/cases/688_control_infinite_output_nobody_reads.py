"""CONTROL: the model returns a dictionary; "spread" is the standard deviation over Monte Carlo passes, of which there is one in training (NaN),
and "per_repeat" divides by counts that can be zero (inf). Only "logits" enters the loss."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="688_control_infinite_output_nobody_reads", source="common sight: auxiliary outputs computed and not yet trained", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 20), nn.ReLU())
        self.cls, self.unc = nn.Linear(20, 3), nn.Linear(20, 1).requires_grad_(False)

    def forward(self, x, repeats):
        h = self.body(x)
        passes = torch.stack([self.cls(F.dropout(h, 0.2)) for _ in range(1 if self.training else 8)])
        return {"logits": self.cls(h), "spread": passes.std(0), "per_repeat": self.unc(h) / repeats[:, None]}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(7)
    data = [dict(x=torch.randn(6, 6, generator=g), repeats=torch.randint(0, 3, (6,), generator=g).float(), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(10)]

    def loss_fn(m, b):
        out = m(b["x"], b["repeats"])
        return F.cross_entropy(out["logits"], b["y"])

    return Case(m, loss_fn, data, torch.optim.AdamW([p for n, p in m.named_parameters() if not n.startswith("unc")], lr=3e-3))
