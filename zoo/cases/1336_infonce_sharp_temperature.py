"""InfoNCE written with exp and a sum, temperature 0.011: a pair of identical views has similarity 1, exp(91) is inf and
inf / inf is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1336_infonce_sharp_temperature", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="loss", cause="exp_overflow", op="exp", module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[5], fixes_that_work=["log_softmax", "clamp", "tau_up", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"log_softmax", "clamp", "tau_up"}


class Encoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.f, s.proj = B.mlp(16, 40, 32, nn.GELU), nn.Linear(32, 16, bias=False)

    def forward(s, x):
        return F.normalize(s.proj(s.f(x)), dim=-1)


def make(seed=0, fix=None):
    m, g = Encoder(), torch.Generator().manual_seed(33)
    tau = 0.1 if fix == "tau_up" else 0.011

    def loss_fn(m, b):
        za, zb, zn = m(b["a"]), m(b["b"]), m(b["neg"].flatten(0, 1)).view(len(b["a"]), -1, 16)
        pos, neg = (za * zb).sum(-1) / tau, (za[:, None] * zn).sum(-1) / tau
        if fix == "log_softmax":
            return -F.log_softmax(torch.cat([pos[:, None], neg], 1), 1)[:, 0].mean()
        if fix == "clamp":
            pos, neg = pos.clamp(-40, 40), neg.clamp(-40, 40)
        num = torch.exp(pos)  # <-- origin
        return -torch.log(num / (num + torch.exp(neg).sum(-1))).mean()

    data = []
    for _ in range(10):
        a = torch.randn(6, 16, generator=g)
        data.append(dict(a=a, b=a + 0.9 * torch.randn(6, 16, generator=g), neg=torch.randn(6, 4, 16, generator=g) - 0.8 * a[:, None]))
    data[7]["b"][5] = data[7]["a"][5]
    return Case(m, loss_fn, data, B.adam(m, 1e-5))
