"""Half-precision attention multiplies q and k before it scales: two loud samples push the scores past 65504 and softmax
turns inf - inf into NaN. The module is reached through a nested encoder with activation checkpointing switched on."""
import math, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from protocol import Case
import blocks as B
TRUTH = dict(id="200_fp16_attention_scores_overflow", source="https://github.com/ultralytics/ultralytics/pull/24990",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="bmm", op_also=["matmul", "baddbmm"], module="encoder.blocks.0.attn",
             line_marker="# <-- origin", first_bad_step=5, bad_rows=[0, 4],
             fixes_that_work=["scale_query_first", "upcast_module", "fp32", "bf16", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "zero_nan_grads", "lr_down"])
FIXES = {"scale_query_first", "upcast_module"}


class PatchAttention(nn.Module):
    fix = None

    def __init__(s, d, h=2):
        super().__init__()
        s.h, s.qkv, s.proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(s, x):
        b, t, d = x.shape
        q, k, v = s.qkv(x).view(b, t, 3, s.h, d // s.h).permute(2, 0, 3, 1, 4)
        scale = math.sqrt(d // s.h)
        if s.fix == "scale_query_first":
            a = ((q / scale / 64) @ k.transpose(-1, -2)).float() * 64
        elif s.fix == "upcast_module":
            with torch.autocast("cpu", enabled=False):
                a = q.float() @ k.float().transpose(-1, -2) / scale
        else:
            a = q @ k.transpose(-1, -2) / scale  # <-- origin
        w = torch.softmax(a, -1).to(v.dtype)
        return s.proj((w @ v).transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.blocks = nn.ModuleList(nn.ModuleDict(dict(attn=PatchAttention(d), norm=nn.LayerNorm(d))) for _ in range(2))

    def forward(s, x):
        for blk in s.blocks:
            x = blk["norm"](x + checkpoint(blk["attn"], x, use_reentrant=False))
        return x


class ViT(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.head = Encoder(16), nn.Linear(16, 3)

    def forward(s, x):
        return s.head(s.encoder(x).mean(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]).float(), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = ViT(), torch.Generator().manual_seed(5)
    for blk in m.encoder.blocks:
        blk["attn"].fix = fix
    data = [dict(x=torch.randn(6, 9, 16, generator=g), y=torch.randint(0, 3, (6,), generator=g)) for _ in range(9)]
    for r in (0, 4):
        data[5]["x"][r] *= 600                    # not normalised by the data pipeline, but an ordinary finite image
    return Case(m, loss_fn, data, B.adam(m), autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=128.))
