"""Molecules with several measured properties, some missing (NaN by convention). torch.nanmean makes the loss finite; the derivative of
the square at the masked entries is 0 * NaN."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="611_nanmean_over_missing_labels", source="https://github.com/pytorch/pytorch/issues/67180",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="pow", op_also=["mul", "nanmean", "nansum", "sub"], module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[0, 5], fixes_that_work=["double_where", "select", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"double_where", "select"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g = B.mlp(7, 20, 3), torch.Generator().manual_seed(40)

    def criterion(pred, y):
        if fix == "select":
            known = ~y.isnan()
            return (pred[known] - y[known]).pow(2).mean()
        if fix == "double_where":
            known = ~y.isnan()
            err = pred - torch.where(known, y, torch.zeros_like(y))
            return torch.where(known, err, torch.zeros_like(err)).pow(2).sum() / known.sum()
        se = (pred - y) ** 2  # <-- origin
        return torch.nanmean(se)

    data = []
    for _ in range(9):
        x = torch.randn(6, 7, generator=g)
        data.append([x, torch.sin(x[:, :3])])
    data[4][1][0, 1] = data[4][1][5, 2] = float("nan")
    return Case(net, lambda m, b: criterion(m(b[0]), b[1]), data, torch.optim.Adam(net.parameters(), lr=3e-3))
