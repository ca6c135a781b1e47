"""One entry of the fixed sinusoidal position table (a buffer) loses its exponent to a flipped bit between two steps: sin(1) = 0.84
becomes 2.9e38. The table is never written by training."""
import math
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="707_bitflip_in_the_position_table", source="after reports of silent data corruption in long runs",
             symptom="nan_loss", phase="state", cause="transient_fault", op=None, module="positions", line_marker=None, tensor="positions.pe", tensor_kind="buffer", first_bad_step=6, bad_rows=None,
             fixes_that_work=["restore_buffers"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"restore_buffers"}


class Sinusoids(nn.Module):
    def __init__(self, T, d):
        super().__init__()
        angle = torch.arange(T)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        self.register_buffer("pe", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))

    def forward(self, x):
        return x + self.pe[: x.shape[1]]


class LM(nn.Module):
    def __init__(self, V=32, d=32):
        super().__init__()
        self.embed, self.positions = nn.Embedding(V, d), Sinusoids(16, d)
        self.layers = nn.ModuleList([B.Block(d), B.Block(d)])
        self.norm, self.lm_head = nn.LayerNorm(d), nn.Linear(d, V)

    def forward(self, ids):
        x = self.positions(self.embed(ids) * math.sqrt(32))
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        for layer in self.layers:
            x = layer(x, mask)
        return self.lm_head(self.norm(x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = LM()
    good = m.positions.pe.clone()

    def before_step(case, i):
        if i == 6:
            m.positions.pe.view(torch.int32)[1, 0] ^= 1 << 30
        if i == 6 and fix == "restore_buffers":
            m.positions.pe.copy_(good)

    return Case(m, B.lm_loss, B.lm_data(10), B.adam(m, 1e-3), before_step=before_step)
