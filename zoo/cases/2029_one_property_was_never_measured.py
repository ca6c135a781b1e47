"""Multi-task molecule properties: one property of one molecule was never measured and its label is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2029_one_property_was_never_measured", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, line_marker=None,
             first_bad_step=7, bad_rows=[3], fixes_that_work=["drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = set()


class GIN(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2 = B.mlp(4, 16, 16, nn.ReLU), B.mlp(16, 16, 16, nn.ReLU)
        s.heads = nn.ModuleDict(dict(logp=nn.Linear(16, 1), gap=nn.Linear(16, 1), alpha=nn.Linear(16, 1)))

    def forward(s, x, adj):
        h = s.l1(x + adj @ x)
        h = s.l2(h + adj @ h).sum(1)
        return {k: head(h).squeeze(-1) for k, head in s.heads.items()}


def loss_fn(m, b):
    out = m(b["x"], b["adj"])
    return sum(F.smooth_l1_loss(out[k], b["label"][k]) for k in out)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = GIN()
    g = torch.Generator().manual_seed(55)
    data = []
    for _ in range(10):
        a = (torch.rand(5, 6, 6, generator=g) < 0.4).float().triu(1)
        data.append(dict(x=torch.randn(5, 6, 4, generator=g), adj=a + a.transpose(1, 2), label={k: torch.randn(5, generator=g) for k in ("logp", "gap", "alpha")}))
    data[7]["label"]["gap"][3] = float("nan")
    return Case(m, loss_fn, data, B.adam(m, 2e-3))
