"""A linear-attention block in the manner of RWKV, checkpointed: exp(k) is accumulated without subtracting the running maximum, and
one rare token has a key of 120."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from protocol import Case
import blocks as B
TRUTH = dict(id="418_checkpointed_wkv_without_max", source="https://github.com/BlinkDL/RWKV-LM (numerically stable wkv)",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="exp", op_also=["mul", "div"], module="blocks.1.mix", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1, 3], fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp"}


class TimeMix(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        self.rkv, self.out, self.fix = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False), fix
        self.decay = nn.Parameter(torch.full((d,), 0.5))

    def wkv(self, k, v):
        num = den = torch.zeros_like(k[:, 0])
        ys = []
        for t in range(k.shape[1]):
            kt = k[:, t].clamp(max=60.0) if self.fix == "clamp" else k[:, t]
            w = torch.exp(kt)  # <-- origin
            num, den = self.decay.sigmoid() * num + w * v[:, t], self.decay.sigmoid() * den + w
            ys.append(num / den)
        return torch.stack(ys, 1)

    def forward(self, x):
        r, k, v = self.rkv(x).chunk(3, -1)
        return self.out(r.sigmoid() * self.wkv(k, v))


class Block(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        self.ln, self.mix = nn.LayerNorm(d, elementwise_affine=False), TimeMix(d, fix)

    def forward(self, x):
        return x + self.mix(self.ln(x))


class RWKV(nn.Module):
    def __init__(self, V, d, fix):
        super().__init__()
        self.emb, self.blocks, self.head = nn.Embedding(V, d), nn.ModuleList(Block(d, fix) for _ in range(2)), nn.Linear(d, V)

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False)
        return self.head(x)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = RWKV(32, 16, fix)
    with torch.no_grad():
        m.emb.weight[1] = 0.0
        m.emb.weight[1, 3] = 50.0  # after the norm: nearly all of the length in channel 3
        m.blocks[1].mix.rkv.weight[16 + 5, 3] = 32.0
        m.blocks[1].mix.rkv.weight[16 + 5, [j for j in range(16) if j != 3]] = 0.0
        m.emb.weight[2:, 3] *= 0.3
    data = B.lm_data(8)
    data[6]["ids"][1, 0] = data[6]["ids"][3, 9] = 1
    return Case(m, B.lm_loss, data, B.sgd(m, 1e-4), accumulation=1)
