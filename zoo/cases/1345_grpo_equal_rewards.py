"""GRPO advantages (r - mean) / std without eps: all answers to one prompt got the same reward, 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1345_grpo_equal_rewards", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="loss", cause="zero_division", op="div", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[4, 5, 6, 7], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps"}


class Policy(nn.Module):
    def __init__(s):
        super().__init__()
        s.tok, s.rnn, s.head = nn.Embedding(16, 12), nn.LSTM(12, 20, batch_first=True), nn.Linear(20, 16)

    def forward(s, ids):
        return s.head(s.rnn(s.tok(ids))[0])


def make(seed=0, fix=None):
    m, g = Policy(), torch.Generator().manual_seed(23)

    def loss_fn(m, b):
        lp = F.log_softmax(m(b["ids"])[:, :-1], -1).gather(-1, b["ids"][:, 1:, None]).squeeze(-1)
        r = b["reward"].view(-1, 4)
        mean, std = r.mean(1, keepdim=True), r.std(1, keepdim=True)
        adv = (r - mean) / (std + (1e-4 if fix else 0.0))  # <-- origin
        return -(torch.exp(lp - lp.detach()) * adv.view(-1, 1)).mean()

    data = [dict(ids=torch.randint(0, 16, (12, 7), generator=g), reward=torch.randint(0, 5, (12,), generator=g).float() + 0.1 * torch.arange(12)) for _ in range(10)]
    data[6]["reward"][4:8] = 1.0
    return Case(m, loss_fn, data, B.adam(m), row_units=[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])
