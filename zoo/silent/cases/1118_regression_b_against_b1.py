"""The network returns (B, 1), the targets are (B,): (pred - y) ** 2 is (B, B) and compares every prediction with every target. The model learns the mean."""
import torch, torch.nn as nn
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="1118_regression_b_against_b1", source="constructed from the pattern ((pred - y) ** 2).mean() with pred of shape (B, 1)", symptom="silent", phase="loss",
             cause="broadcasting_loss_shape", op="sub", module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="no: shapes are not in the source", objects="yes: output (B, 1) against target (B,)"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["squeeze"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"squeeze"}


def signal(case, i, r):
    """an output of (B, 1), a target of (B,), and the loss of the batch is not the mean of the losses of its rows"""
    b = case.batches[max(i, 0)]
    with torch.no_grad():
        if case.model(b["x"]).shape == b["y"].shape:
            return False
        rows = [float(case.loss_fn(case.model, {k: v[j:j + 1] for k, v in b.items()})) for j in range(len(b["y"]))]
        return abs(sum(rows) / len(rows) - float(case.loss_fn(case.model, b))) > 1e-3


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = B.mlp(8, 32, 1), S.cat(S.regression(16, seed=99))

    def loss_fn(m, b):
        pred = m(b["x"])
        if fix:
            pred = pred.squeeze(-1)
        return ((pred - b["y"]) ** 2).mean()  # <-- origin

    def quality(c):
        return S.in_eval(m, lambda: ((m(test["x"])[:, 0] - test["y"]) ** 2).mean())

    return SCase(m, loss_fn, S.regression(80), torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality)
