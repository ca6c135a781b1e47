"""L2-normalised embeddings in half precision: the eps 1e-8 that protects the division rounds to zero in fp16, so the
empty bag of one document is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="202_fp16_normalize_eps_underflow", source="https://github.com/pytorch/pytorch/issues/32137",
             symptom="nan_loss", phase="forward", cause="fp16_underflow", op="div", module="towers.text.norm", line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[2], fixes_that_work=["fp32", "bf16", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "loss_scale", "upcast_module", "zero_nan_grads"])
FIXES = {"fp32", "bf16", "eps", "upcast_module", "loss_scale"}


class UnitNorm(nn.Module):
    eps, upcast = 1e-8, False

    def forward(s, v):
        if s.upcast:
            return (v.float() / (torch.linalg.vector_norm(v.float(), dim=-1, keepdim=True) + s.eps)).to(v.dtype)
        length = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        return v / (length + s.eps)  # <-- origin


class Tower(nn.Module):
    def __init__(s, n):
        super().__init__()
        s.embed, s.norm = nn.Embedding(n, 12), UnitNorm()

    def forward(s, ids, w):
        return s.norm((s.embed(ids) * w[..., None].to(s.embed.weight.dtype)).sum(1))


class TwoTower(nn.Module):
    def __init__(s):
        super().__init__()
        s.towers = nn.ModuleDict(dict(text=Tower(40), image=Tower(30)))

    def forward(s, b):
        return s.towers["text"](b["t"], b["tw"]), s.towers["image"](b["i"], b["iw"])


def loss_fn(m, b):
    t, i = m(b)
    lg = (t @ i.T).float() * 5
    return F.cross_entropy(lg, torch.arange(len(lg)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = TwoTower().to({"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16))
    for t in m.towers.values():
        t.norm.eps = 1e-3 if fix == "eps" else 1e-8
        t.norm.upcast = fix == "upcast_module"
    g = torch.Generator().manual_seed(3)
    data = [dict(t=torch.randint(0, 40, (5, 6), generator=g), tw=torch.ones(5, 6), i=torch.randint(0, 30, (5, 4), generator=g), iw=torch.ones(5, 4)) for _ in range(11)]
    data[7]["tw"][2] = 0.0                        # every word of this caption was out of vocabulary
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-2), static_scale=64.0 if fix == "loss_scale" else None)
