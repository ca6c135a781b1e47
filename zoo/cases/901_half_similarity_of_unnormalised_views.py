"""InfoNCE under fp16 autocast where somebody removed the normalisation: the similarity matrix of one loud clip with itself leaves the
half range."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="901_half_similarity_of_unnormalised_views", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="loss", cause="fp16_overflow", op="mm", op_also=["matmul", "addmm"], module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[3], fixes_that_work=["bf16", "fp32", "upcast_module", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"upcast_module"}


class Towers(nn.Module):
    def __init__(s):
        super().__init__()
        s.audio, s.text = nn.Linear(12, 32), nn.Linear(10, 32)

    def forward(s, a, t):
        return s.audio(a), s.text(t)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Towers()

    def loss_fn(m, b):
        a, t = m(b["a"], b["t"])
        if fix == "upcast_module":
            with torch.autocast("cpu", enabled=False):
                sim = a.float() @ t.float().T
        else:
            sim = a @ t.T  # <-- origin
        y = torch.arange(len(sim))
        return (F.cross_entropy(sim.float(), y) + F.cross_entropy(sim.T.float(), y)) / 2

    g = torch.Generator().manual_seed(1)
    data = [dict(a=torch.randn(6, 12, generator=g), t=torch.randn(6, 10, generator=g)) for _ in range(11)]
    data[7]["a"][3] *= 900.0
    data[7]["t"][3] *= 400.0
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-3), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=64.0), clip_norm=1.0)
