"""Fairness term over group means by index_add: a group that is absent from the batch has sum 0 and count 0."""
import torch, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="339_group_mean_of_absent_group", source="common report: scatter-mean of an absent group",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=None, fixes_that_work=["eps", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = B.mlp(8, 16, 1), torch.Generator().manual_seed(2)

    def loss_fn(m, batch):
        x, y, group = batch
        out = m(x)
        sums = torch.zeros(3, 1).index_add(0, group, out)
        counts = torch.zeros(3, 1).index_add(0, group, torch.ones_like(out))
        means = sums / (counts + (1e-6 if fix == "eps" else 0.0))  # <-- origin
        return F.mse_loss(out, y) + 0.1 * (means - means.mean()).pow(2).sum()

    data = [(b["x"], b["y"], torch.randperm(6, generator=g) % 3) for b in B.xy(9)]
    data[5] = (data[5][0], data[5][1], data[5][2].clamp(max=1))
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
