"""A home-made SELU: where(x > 0, x, a * (exp(x) - 1)) evaluates exp on the positive side as well."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="510_selu_by_hand", source="written for this set, after a kind of report often seen: selu by hand",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="exp", op_also=["where", "mul"], module="act", line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[3], fixes_that_work=["double_where", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"double_where"}


class MySELU(nn.Module):
    scale, alpha, safe = 1.0507, 1.6733, False

    def forward(self, x):
        neg = torch.minimum(x, torch.zeros_like(x)) if self.safe else x
        e = neg.exp()  # <-- origin
        return self.scale * torch.where(x > 0, x, self.alpha * (e - 1))


class SNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(7, 20)
        self.act = MySELU()
        self.out = nn.Linear(20, 1)

    def forward(self, x):
        return self.out(self.act(self.inp(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = SNN()
    net.act.safe = fix == "double_where"
    feed = []
    for i in range(7):
        x, y = torch.randn(6, 7) * 8, torch.randn(6, 1)
        if i == 3:
            x[3] *= 40.0
        feed.append({"x": x, "y": y})
    return Case(net, lambda m, b: F.huber_loss(m(b["x"]), b["y"]), feed, torch.optim.Adam(net.parameters(), lr=1e-3))
