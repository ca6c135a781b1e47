"""Metric learning: hard triplets are mined inside the batch; when all labels of a batch differ the selection is empty."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="409_triplets_without_a_positive_pair", source="common report: mean of an empty masked_select in triplet mining",
             symptom="nan_loss", phase="loss", cause="empty_reduction", op="mean", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=None, fixes_that_work=["guard", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"guard"}


def batch_all_triplet(z, y, margin=0.3, guard=False):
    d = torch.cdist(z, z)
    same = y[:, None] == y[None, :]
    eye = torch.eye(len(y), dtype=torch.bool)
    pos, neg = same & ~eye, ~same
    valid = pos[:, :, None] & neg[:, None, :]
    terms = F.relu(d[:, :, None] - d[:, None, :] + margin)
    chosen = torch.masked_select(terms, valid)
    if guard and chosen.numel() == 0:
        return 0.0 * z.sum()
    return chosen.mean()  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.Linear(24, 6))
    g, data = torch.Generator().manual_seed(1), []
    for i in range(10):
        y = torch.randint(0, 3, (8,), generator=g) if i != 6 else torch.randperm(8, generator=g)
        data.append({"inputs": {"features": torch.randn(8, 10, generator=g) + y[:, None]}, "meta": ["x"] * 8, "y": y})

    def objective(net, b):
        return batch_all_triplet(F.normalize(net(b["inputs"]["features"]), dim=-1), b["y"], guard=fix == "guard")

    return Case(net, objective, data, B.adam(net, 1e-3))
