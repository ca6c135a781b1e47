"""Group-relative advantages with the unbiased std: a prompt that has only one completion left (the others timed out) has
std = NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1317_group_std_of_one_completion", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="loss", cause="empty_reduction", op="std", op_also=["var"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[6], fixes_that_work=["biased", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "eps_up"])
FIXES = {"biased", "eps_up"}


class Policy(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.gru, s.out = nn.Embedding(24, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 24)

    def forward(s, ids):
        return s.out(s.gru(s.embed(ids))[0])


def make(seed=0, fix=None):
    m, g = Policy(), torch.Generator().manual_seed(14)

    def loss_fn(m, b):
        lp = F.log_softmax(m(b["ids"])[:, :-1], -1).gather(-1, b["ids"][:, 1:, None]).squeeze(-1).mean(-1)
        total = 0.0
        for k in b["prompt"].unique():
            mine = b["prompt"] == k
            r = b["reward"][mine]
            spread = r.std(unbiased=fix != "biased")  # <-- origin
            adv = (r - r.mean()) / (spread + (1e-1 if fix == "eps_up" else 1e-4))
            total = total - (adv * lp[mine]).sum()
        return total / len(lp)

    data = [dict(ids=torch.randint(0, 24, (9, 8), generator=g), reward=torch.rand(9, generator=g), prompt=torch.arange(9) // 3) for _ in range(9)]
    data[6]["prompt"] = torch.tensor([0, 0, 0, 1, 1, 1, 2, 3, 3])
    return Case(m, loss_fn, data, B.adam(m))
