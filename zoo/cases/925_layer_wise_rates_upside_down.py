"""Layer-wise learning-rate decay with the exponent the wrong way round: the lowest layers get the largest rate instead of the smallest,
and the loss explodes within a few steps."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="925_layer_wise_rates_upside_down", source="written for this set after a common mistake; no single report",
             symptom="spike", phase="optimizer", cause="lr_divergence", op=None, module=None, line_marker=None,
             first_bad_step=1, bad_rows=None, fixes_that_work=["lr_down", "right_rate"], fixes_that_do_not=["skip_batch"])
FIXES = {"right_rate"}


class Deep(nn.Module):
    def __init__(s):
        super().__init__()
        s.layers = nn.ModuleList([nn.Linear(8 if i == 0 else 32, 32) for i in range(5)])
        s.head = nn.Linear(32, 1)

    def forward(s, x):
        for layer in s.layers:
            x = x + F.relu(layer(x)) if x.shape[-1] == 32 else F.relu(layer(x))
        return s.head(x)


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Deep()
    decay = 0.4 if fix == "right_rate" else 1 / 0.4
    base = 0.02
    groups = [{"params": layer.parameters(), "lr": base * decay ** (5 - i)} for i, layer in enumerate(m.layers)] + [{"params": m.head.parameters(), "lr": base}]
    opt = torch.optim.SGD(groups, lr=base, momentum=0.9)
    return Case(m, loss_fn, B.xy(14, bs=16), opt, healthy=lambda log: all(r.loss_ok for r in log) and max(r.loss for r in log) < 5 * max(r.loss for r in log[:2]))
