"""Weights are rounded to e4m3fnuz for the product, without a scale. An embedding row of a rare token was initialised at 600
by a converted checkpoint: whenever that token comes, its row is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="348_fp8_weights_without_a_scale", source="https://github.com/vllm-project/vllm/issues/5030 (per-tensor weight scales)", symptom="nan_loss", phase="forward", cause="fp8_overflow",
             op="to_copy", op_also=["_to_copy", "to"], module="embed", line_marker="# <-- origin", first_bad_step=3, bad_rows=[5],
             fixes_that_work=["clamp", "current_scale", "no_fp8", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "no_fp8", "current_scale"}


class Embedding8(nn.Embedding):
    fix = None

    def forward(self, ids):
        rows = super().forward(ids)
        if self.fix == "no_fp8":
            return rows
        scale = rows.detach().abs().amax() / 240 if self.fix == "current_scale" else 1.0
        values = rows.detach() / scale
        if self.fix == "clamp":
            values = values.clamp(-240, 240)
        small = values.to(torch.float8_e4m3fnuz)  # <-- origin
        return rows + (small.to(rows.dtype) * scale - rows).detach()


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.embed, self.norm, self.out = Embedding8(24, 8), nn.LayerNorm(8), nn.Linear(8, 24)
        self.embed.fix = fix

    def forward(self, ids):
        return self.out(self.norm(self.embed(ids)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Net(fix)
    with torch.no_grad():
        m.embed.weight[23, 2] = 600.0
    g = torch.Generator().manual_seed(9)
    data = [dict(ids=torch.randint(0, 23, (6, 5), generator=g)) for _ in range(7)]
    data[3]["ids"][5, 1] = 23
    return Case(m, lambda m, b: F.cross_entropy(m(b["ids"])[:, :-1].flatten(0, 1), b["ids"][:, 1:].flatten()), data, B.adam(m, 1e-3))
