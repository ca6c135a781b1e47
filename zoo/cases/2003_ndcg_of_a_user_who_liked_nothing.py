"""ApproxNDCG divides by the ideal DCG; a user whose whole list has relevance 0 makes it 0 / 0."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2003_ndcg_of_a_user_who_liked_nothing", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[1, 5], fixes_that_work=["eps", "drop_rows", "skip_batch", "clamp"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp"}


class TwoTower(nn.Module):
    def __init__(s):
        super().__init__()
        s.user, s.item = nn.Embedding(40, 12), nn.Embedding(60, 12)
        s.bias = nn.Embedding(60, 1)

    def forward(s, u, items):
        return (s.user(u)[:, None] * s.item(items)).sum(-1) + s.bias(items).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = TwoTower()

    def loss_fn(m, b):
        s = m(b["user"], b["items"])
        rank = 1 + torch.sigmoid((s[:, None, :] - s[:, :, None]) / 0.5).sum(-1) - 0.5
        gain = 2.0 ** b["rel"] - 1
        dcg = (gain / torch.log2(1 + rank)).sum(-1)
        ideal = gain.sort(-1, descending=True).values / torch.log2(torch.arange(2, gain.shape[1] + 2).float())
        ideal = ideal.sum(-1)
        if fix == "eps":
            ideal = ideal + 1e-6
        if fix == "clamp":
            ideal = ideal.clamp(min=1e-6)
        return 1 - (dcg / ideal).mean()  # <-- origin

    g = torch.Generator().manual_seed(5)
    data = [dict(user=torch.randint(0, 40, (8,), generator=g), items=torch.randint(0, 60, (8, 10), generator=g),
                 rel=torch.randint(0, 4, (8, 10), generator=g).float()) for _ in range(10)]
    data[6]["rel"][1] = 0
    data[6]["rel"][5] = 0
    return Case(m, loss_fn, data, B.adam(m, 1e-2))
