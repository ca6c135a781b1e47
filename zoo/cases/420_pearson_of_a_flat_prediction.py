"""A correlation loss in the one-pass formula n*Sxx - Sx^2: for the sample whose values are large and nearly equal the difference of
two large numbers comes out negative."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="420_pearson_of_a_flat_prediction", source="common report: one-pass Pearson/CCC loss is NaN for flat signals",
             symptom="nan_loss", phase="loss", cause="cancellation", op="sqrt", module=None, line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[4], fixes_that_work=["two_pass", "clamp", "skip_batch", "drop_rows", "fp64"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"two_pass", "clamp", "fp64"}


def spread(x, fix):
    n = x.shape[-1]
    if fix == "two_pass":
        x = x - x.mean(-1, keepdim=True)
        return (n * (x * x).sum(-1) + 1e-6).sqrt()
    if fix == "fp64":
        x = x.double()
    q = n * (x * x).sum(-1) - x.sum(-1) ** 2
    if fix == "clamp":
        q = q.clamp(min=1e-3)
    return torch.sqrt(q).to(torch.float32)  # <-- origin


def pearson(p, t, fix=None):
    n = p.shape[-1]
    cov = n * (p * t).sum(-1) - p.sum(-1) * t.sum(-1)
    return cov / (spread(p, None) * spread(t, fix))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv1d(2, 6, 3, padding=1), nn.Tanh(), nn.Conv1d(6, 1, 3, padding=1))
    g, data = torch.Generator().manual_seed(23), []
    for _ in range(7):
        s = torch.randn(6, 2, 20, generator=g)
        data.append({"signal": s, "meta": {"id": list("abcdef")}, "reference": s.sum(1) + 3.0})
    for k in range(400):
        flat = 1013.25 + 0.002 * torch.randn(20, generator=g)
        if 20 * (flat * flat).sum() - flat.sum() ** 2 < 0:
            break
    data[3]["reference"][4] = flat
    return Case(net, lambda m, b: 1 - pearson(m(b["signal"])[:, 0], b["reference"], fix).mean(), data, B.adam(net, 1e-3))
