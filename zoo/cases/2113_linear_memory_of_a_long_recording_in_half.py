"""A recurrent memory without an activation grows by half at every step. Up to sixteen steps that fits; one recording has thirty-four, and under fp16 autocast its memory passes 65504."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2113_linear_memory_of_a_long_recording_in_half", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="linear", op_also=["addmm", "mm", "matmul"], module="carry", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1], fixes_that_work=["fp32", "bf16", "upcast_module", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"upcast_module"}


class Memory(nn.Module):
    def __init__(s, fix, d=12):
        super().__init__()
        s.fix = fix
        s.read, s.carry, s.norm, s.out = nn.Linear(5, d), nn.Linear(d, d, bias=False), nn.LayerNorm(d), nn.Linear(d, 2)
        with torch.no_grad():
            q, _ = torch.linalg.qr(torch.randn(d, d))
            s.carry.weight.copy_(1.5 * q)

    def forward(s, x, length):
        h = torch.zeros(len(x), s.carry.in_features)
        for t in range(x.shape[1]):
            alive = (t < length)[:, None]
            if s.fix == "upcast_module":
                with torch.autocast("cpu", enabled=False):
                    moved = s.carry(h.float())
            else:
                moved = s.carry(h)  # <-- origin
            h = torch.where(alive, moved + s.read(x[:, t]), h)
        return s.out(s.norm(h.float()))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Memory(fix)
    g = torch.Generator().manual_seed(44)
    data = []
    for k in range(9):
        t = 34 if k == 6 else 16
        length = torch.randint(6, 17, (5,), generator=g)
        if k == 6:
            length[1] = 34
        data.append(dict(x=torch.randn(5, t, 5, generator=g), length=length, y=torch.randint(0, 2, (5,), generator=g)))
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"], b["length"]), b["y"]), data, B.adam(m, 1e-3), autocast=torch.float16)
