"""Monocular depth with the scale-invariant log loss. One batch holds crops without a single lidar return: the mean of nothing."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="506_silog_without_valid_depth", source="written for this set, after a kind of report often seen: loss nan when mask is empty",
             symptom="nan_loss", phase="loss", cause="empty_reduction", op="mean", module=None, line_marker="# <-- origin", first_bad_step=6, bad_rows=None,
             gradients_are_zero=True, fixes_that_work=["guard", "skip_batch"], fixes_that_do_not=["clip", "zero_nan_grads", "lr_down"])
FIXES = {"guard"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ELU(), nn.Conv2d(8, 1, 3, padding=1), nn.Softplus())

    def silog(net, sample):
        depth = net(sample["rgb"]) + 1e-3
        valid = sample["lidar"] > 0.1
        err = torch.log(depth[valid]) - torch.log(sample["lidar"][valid])
        if fix == "guard" and err.numel() == 0:
            return depth.sum() * 0.0
        second_moment = (err**2).mean()  # <-- origin
        return torch.sqrt(second_moment - 0.85 * err.mean() ** 2 + 1e-6) * 10.0

    samples = []
    for i in range(10):
        lidar = torch.rand(3, 1, 8, 8) * 20 * (torch.rand(3, 1, 8, 8) > 0.8)
        samples.append({"rgb": torch.rand(3, 3, 8, 8), "lidar": lidar * (i != 6)})
    return Case(net, silog, samples, torch.optim.AdamW(net.parameters(), lr=1e-4))
