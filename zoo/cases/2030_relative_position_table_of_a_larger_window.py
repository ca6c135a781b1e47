"""A window attention model is fine-tuned with a larger window: the relative position table of one block did not fit the checkpoint and was left as allocated."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2030_relative_position_table_of_a_larger_window", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="blocks.1.attn", line_marker=None, tensor="blocks.1.attn.rel", tensor_kind="parameter",
             first_bad_step=0, bad_rows=None, fixes_that_work=["init"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"init"}


class WindowAttention(nn.Module):
    def __init__(s, d, w=4, h=2):
        super().__init__()
        s.h, s.qkv, s.proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
        s.rel = nn.Parameter(torch.zeros(h, (2 * w - 1) ** 2))
        yx = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        d2 = yx[:, :, None] - yx[:, None] + w - 1
        s.register_buffer("index", d2[0] * (2 * w - 1) + d2[1])

    def forward(s, x):
        b, n, d = x.shape
        q, k, v = s.qkv(x).view(b, n, 3, s.h, d // s.h).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(-1, -2) / (d // s.h) ** 0.5 + s.rel[:, s.index]
        return s.proj((a.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Blk(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.norm, s.attn, s.ffn = nn.LayerNorm(d), WindowAttention(d), B.mlp(d, 2 * d, d, nn.GELU)

    def forward(s, x):
        x = x + s.attn(s.norm(x))
        return x + s.ffn(x)


class Swin(nn.Module):
    def __init__(s):
        super().__init__()
        s.patch, s.blocks, s.head = nn.Conv2d(1, 16, 2, 2), nn.ModuleList(Blk(16) for _ in range(3)), nn.Linear(16, 4)

    def forward(s, img):
        x = s.patch(img).flatten(2).transpose(1, 2)
        for b in s.blocks:
            x = b(x)
        return s.head(x.mean(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Swin()
    with torch.no_grad():
        for b in m.blocks:
            nn.init.trunc_normal_(b.attn.rel, std=0.02)
        if fix != "init":  # what torch.empty gave here: some old bytes, some of them NaN
            m.blocks[1].attn.rel.view(-1)[10:60] = float("nan")
    g = torch.Generator().manual_seed(57)
    data = [dict(img=torch.rand(4, 1, 8, 8, generator=g), y=torch.randint(0, 4, (4,), generator=g)) for _ in range(6)]
    return Case(m, lambda m, b: F.cross_entropy(m(b["img"]), b["y"]), data, B.adam(m, 1e-3))
