"""A click model under fp16 autocast: a user with a very long history sums thousands of item vectors, and the dot products of
the feature interaction leave the fp16 range."""
import torch
from torch import nn
import torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="401_embedding_bag_interaction_fp16", source="common report: DLRM dot interaction overflows in half precision",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="bmm", op_also=["matmul", "_to_copy"], module="interaction", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[1], fixes_that_work=["fp32", "bf16", "upcast_module", "scale_down", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"upcast_module", "scale_down"}


class DotInteraction(nn.Module):
    def __init__(self, fix=None):
        super().__init__()
        self.fix = fix

    def forward(self, feats):
        z = torch.stack(feats, dim=1)
        if self.fix == "scale_down":
            z = z / 64
        if self.fix == "upcast_module":
            with torch.autocast("cpu", enabled=False):
                gram = torch.bmm(z.float(), z.float().transpose(1, 2))
        else:
            gram = torch.bmm(z, z.transpose(1, 2))  # <-- origin
        i, j = torch.tril_indices(z.shape[1], z.shape[1], -1)
        return gram[:, i, j]


class Recommender(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.history = nn.EmbeddingBag(50, 8, mode="sum")
        self.item = nn.Embedding(50, 8)
        self.dense = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.interaction = DotInteraction(fix)
        self.norm = nn.LayerNorm(3)
        self.top = nn.Linear(3 + 8, 1)

    def forward(self, dense, item, flat, offsets):
        d = self.dense(dense)
        h = self.history(flat, offsets)
        x = self.interaction([d.float(), h, 8.0 * self.item(item)])
        return self.top(torch.cat([self.norm(x.float()), d.float()], 1)).squeeze(-1)


def select(b, rows):
    hist = [b["history"][r] for r in rows]
    return dict(click=b["click"][rows], dense=b["dense"][rows], item=b["item"][rows], history=hist)


def criterion(net, b):
    flat = torch.cat(b["history"])
    lens = torch.tensor([0] + [len(h) for h in b["history"][:-1]])
    score = net(b["dense"], b["item"], flat, lens.cumsum(0))
    return F.binary_cross_entropy_with_logits(score.float(), b["click"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g, data = Recommender(fix), torch.Generator().manual_seed(9), []
    for _ in range(9):
        hist = [torch.randint(0, 50, (int(torch.randint(3, 30, (1,), generator=g)),), generator=g) for _ in range(5)]
        data.append(dict(click=torch.randint(0, 2, (5,), generator=g).float(), dense=torch.randn(5, 4, generator=g),
                         item=torch.randint(0, 50, (5,), generator=g), history=hist))
    data[5]["history"][1] = torch.full((9000,), 17)
    return Case(net, criterion, data, B.adam(net, 1e-3), autocast=torch.float16, select_rows=select)
