"""Local attention in windows of four. Short texts are padded to the longest one of the batch; in one batch a text is so short that a whole
window consists of padding, and its softmax has nothing to choose from."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="717_window_of_nothing_but_padding", source="https://github.com/lucidrains/vit-pytorch/issues/26",
             symptom="nan_loss", phase="forward", cause="masked_softmax_row", op="softmax", op_also=["_softmax"], module="stages.0.1.attn", line_marker="# <-- origin", first_bad_step=6, bad_rows=[0, 3],
             fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"finfo_min"}
W = 4


class WindowAttention(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        self.qkv, self.out, self.fix = nn.Linear(d, 3 * d), nn.Linear(d, d), fix

    def forward(self, x, keep):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t // W, W, 3, d).unbind(3)
        scores = q @ k.transpose(-1, -2) / d**0.5
        low = torch.finfo(x.dtype).min if self.fix == "finfo_min" else float("-inf")
        scores = scores.masked_fill(~keep.view(b, t // W, 1, W), low)
        weights = F.softmax(scores, dim=-1)  # <-- origin
        return self.out((weights @ v).reshape(b, t, d))


class Global(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        self.mix = nn.Conv1d(d, d, 3, padding=1)

    def forward(self, x, keep):
        return self.mix((x * keep[..., None]).transpose(1, 2)).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self, d, kind, fix):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(d), kind(d, fix)

    def forward(self, x, keep):
        return x + self.attn(self.norm(x), keep)


class Encoder(nn.Module):
    def __init__(self, V=40, d=16, fix=None):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, d, padding_idx=0), nn.Linear(d, 3)
        self.stages = nn.ModuleList([nn.ModuleList([Layer(d, Global, fix), Layer(d, WindowAttention, fix)]), nn.ModuleList([Layer(d, Global, fix)])])

    def forward(self, ids):
        keep, x = ids != 0, self.embed(ids)
        for stage in self.stages:
            for layer in stage:
                x = layer(x, keep)
        return self.head((x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Encoder(fix=fix), torch.Generator().manual_seed(87)
    data = []
    for i in range(10):
        length = torch.randint(9, 13, (5,), generator=g)
        if i == 6:
            length[[0, 3]] = torch.tensor([7, 3])
        ids = torch.randint(1, 40, (5, 12), generator=g) * (torch.arange(12) < length[:, None])
        data.append((ids, torch.randint(0, 3, (5,), generator=g)))
    return Case(m, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, torch.optim.AdamW(m.parameters(), lr=1e-3), accumulation=2)
