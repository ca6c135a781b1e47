"""Temporal action proposals: the model returns its losses as a dict and balances one of them by n / positives. A batch of videos without any action has no positive."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2104_ratio_of_positives_in_a_video_without_actions", source="https://github.com/JJBOY/BMN-Boundary-Matching-Network/issues/22",
             symptom="nan_loss", phase="forward", cause="zero_division", op="reciprocal", op_also=["div"], module="", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=None, fixes_that_work=["clamp", "eps", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp", "eps"}


class Proposals(nn.Module):
    def __init__(s, fix=None):
        super().__init__()
        s.conv, s.start, s.score, s.fix = nn.Conv1d(6, 16, 3, padding=1), nn.Conv1d(16, 1, 1), nn.Conv1d(16, 1, 1), fix

    def forward(s, clip, iou):
        h = torch.relu(s.conv(clip))
        p, q = torch.sigmoid(s.start(h)).squeeze(1), torch.sigmoid(s.score(h)).squeeze(1)
        label = (iou > 0.7).float()
        positives = label.sum()
        if s.fix == "clamp":
            positives = positives.clamp(min=1)
        if s.fix == "eps":
            positives = positives + 1e-3
        ratio = label.numel() / positives  # <-- origin
        w0, w1 = 0.5 * ratio / (ratio - 1), 0.5 * ratio
        balanced = w1 * label * torch.log(p + 1e-6) + w0 * (1 - label) * torch.log(1 - p + 1e-6)
        return dict(loss_start=-balanced.mean(), loss_score=10 * F.mse_loss(q, iou), loss_size=1e-3 * h.square().mean())


def loss_fn(m, b):
    return sum(m(b["clip"], b["iou"]).values())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Proposals(fix)
    g = torch.Generator().manual_seed(90)
    data = [dict(clip=torch.randn(4, 6, 20, generator=g), iou=torch.rand(4, 20, generator=g)) for _ in range(9)]
    data[5]["iou"] *= 0.3
    return Case(m, loss_fn, data, B.adam(m, 2e-3))
