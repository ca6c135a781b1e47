"""Denoising score matching weighted by sigma ** -2 on a schedule that contains sigma = 0."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="333_noise_weight_at_time_zero", source="common report: inverse-variance weights on a schedule that starts at zero",
             symptom="inf_loss", phase="loss", cause="zero_division", op="pow", op_also=["reciprocal", "div"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[5], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = B.mlp(9, 16, 8, nn.SiLU), B.xy(10), torch.Generator().manual_seed(3)

    def loss_fn(m, b):
        sigma = b["t"] / 100
        if fix == "eps":
            sigma = sigma + 1e-2
        noisy = b["x"] + sigma[:, None] * b["noise"]
        weight = sigma ** -2  # <-- origin
        return (weight * (m(torch.cat([noisy, sigma[:, None]], -1)) - b["x"]).pow(2).mean(-1)).mean()

    for b in data:
        b["t"], b["noise"] = torch.randint(1, 100, (6,), generator=g).float(), torch.randn(6, 8, generator=g)
    data[6]["t"][5] = 0
    return Case(m, loss_fn, data, B.adam(m, 1e-3), clip_norm=1.0)
