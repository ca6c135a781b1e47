"""Vision transformer under fp16 autocast: q @ k^T is taken before the division by sqrt(d); a washed-out image pushes the
scores past 65504."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1302_fp16_patch_scores_overflow", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="bmm", op_also=["matmul", "baddbmm"], module="blocks.1.attn",
             line_marker="# <-- origin", first_bad_step=6, bad_rows=[2],
             fixes_that_work=["bf16", "fp32", "upcast_module", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"upcast_module"}


class PatchAttention(nn.Module):
    fix = None

    def __init__(s, d):
        super().__init__()
        s.qkv, s.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(s, x):
        q, k, v = s.qkv(x).chunk(3, -1)
        if s.fix == "upcast_module":
            with torch.autocast("cpu", enabled=False):
                w = torch.softmax(q.float() @ k.float().transpose(1, 2) / math.sqrt(q.shape[-1]), -1)
            return s.out(w.to(v.dtype) @ v)
        scores = torch.bmm(q, k.transpose(1, 2))  # <-- origin
        w = torch.softmax(scores.float() / math.sqrt(q.shape[-1]), -1)
        return s.out(w @ v)


class Layer(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.attn, s.norm, s.up, s.down = PatchAttention(d), nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(s, x):
        x = x + s.attn(x)
        return x + s.down(F.gelu(s.up(s.norm(x))))


class ViT(nn.Module):
    def __init__(s, d=24):
        super().__init__()
        s.patch, s.blocks, s.norm, s.head = nn.Conv2d(3, d, 4, 4), nn.ModuleList(Layer(d) for _ in range(2)), nn.LayerNorm(d), nn.Linear(d, 4)

    def forward(s, img):
        x = s.patch(img).flatten(2).transpose(1, 2)
        for b in s.blocks:
            x = b(x)
        return s.head(s.norm(x).mean(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["img"]).float(), b["y"])


def make(seed=0, fix=None):
    m, g = ViT(), torch.Generator().manual_seed(21)
    for l in m.blocks:
        l.attn.fix = fix
    with torch.no_grad():
        m.blocks[1].attn.qkv.weight.mul_(6)
    data = [dict(img=torch.randn(4, 3, 16, 16, generator=g), y=torch.randint(0, 4, (4,), generator=g)) for _ in range(10)]
    data[6]["img"][2] = data[6]["img"][2] * 60 + 100
    return Case(m, loss_fn, data, B.adam(m), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=128.))
