"""The loss is taken of half-precision probabilities with a floor of 1e-8, which is zero in fp16: log(0 + 0)."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="315_fp16_probability_floor", source="common report: 1e-8 as the floor of a half-precision logarithm",
             symptom="inf_loss", phase="loss", cause="fp16_underflow", op="log", module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[0], fixes_that_work=["fp32", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"fp32", "eps"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = B.mlp(8, 12, 4, nn.ReLU), B.xy(9), torch.Generator().manual_seed(4)

    def loss_fn(m, b):
        logits = m(b["x"])
        p = torch.softmax(logits if fix == "fp32" else logits.half(), -1)
        p = p.gather(-1, b["c"][:, None])
        return -torch.log(p + (1e-4 if fix == "eps" else 1e-8)).float().mean()  # <-- origin

    for b in data:
        b["c"] = torch.randint(0, 4, (6,), generator=g)
    data[5]["x"][0] *= 100.0
    with torch.no_grad():
        data[5]["c"][0] = m(data[5]["x"][:1])[0].argmin()
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
