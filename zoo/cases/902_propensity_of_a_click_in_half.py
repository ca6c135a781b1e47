"""Inverse propensity weighting in half precision: the logging policy's probability of a position was stored as fp16 logits, sigmoid
rounds it to zero, and click / propensity is 0/0. In single precision it is 1e-8 and the clamp on the weight takes care of it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="902_propensity_of_a_click_in_half", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="loss", cause="fp16_underflow", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0, 4], fixes_that_work=["fp32", "bf16", "upcast_module", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"fp32", "bf16", "upcast_module", "eps"}


class CTR(nn.Module):
    def __init__(s):
        super().__init__()
        s.item, s.user, s.out = nn.Embedding(20, 12), nn.Embedding(20, 12), nn.Linear(12, 1)

    def forward(s, u, i):
        return s.out(torch.tanh(s.user(u) + s.item(i))).squeeze(-1)


def make(seed=0, fix=None):
    dt = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m = CTR().to(dt)

    def loss_fn(m, b):
        logit = b["exam"].float() if fix == "upcast_module" else b["exam"].to(dt)
        p = torch.sigmoid(logit)
        if fix == "eps":
            p = p + 1e-3
        w = b["click"].to(p.dtype) / p  # <-- origin
        w = w.clamp(max=20.0).float()
        return F.binary_cross_entropy_with_logits(m(b["u"], b["i"]).float(), w / 20)

    g = torch.Generator().manual_seed(2)
    data = [dict(u=torch.randint(0, 20, (6,), generator=g), i=torch.randint(0, 20, (6,), generator=g), click=(torch.rand(6, generator=g) > 0.5).float(),
                 exam=torch.randn(6, generator=g)) for _ in range(11)]
    for r in (0, 4):
        data[6]["exam"][r], data[6]["click"][r] = -18.5, 0.0
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-2))
