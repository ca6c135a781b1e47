"""Singing voice: the error in cents is masked by multiplying, but log2 of an unvoiced frame's 0 Hz is -inf, and 0 * inf is NaN."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2021_cents_of_an_unvoiced_frame", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="loss", cause="log_zero", op="log2", module=None, line_marker="# <-- origin",
             first_bad_step=2, bad_rows=[4], fixes_that_work=["eps", "clamp", "double_where", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp", "double_where"}


class F0Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.front, s.rnn, s.head = nn.Conv1d(8, 16, 5, padding=2), nn.LSTM(16, 12, batch_first=True, bidirectional=True), nn.Linear(24, 1)

    def forward(s, mel):
        return 7 + s.head(s.rnn(torch.relu(s.front(mel)).transpose(1, 2))[0]).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = F0Net()

    def loss_fn(m, b):
        f0, voiced = b["f0"], (b["f0"] > 0).float()
        if fix == "eps":
            f0 = f0 + 1e-3
        if fix == "clamp":
            f0 = f0.clamp(min=1.0)
        if fix == "double_where":
            f0 = torch.where(f0 > 0, f0, torch.ones_like(f0))
        cents = 12.0 * (m(b["mel"]) - torch.log2(f0)).abs()  # <-- origin
        return (cents * voiced).sum() / voiced.sum().clamp(min=1)

    g = torch.Generator().manual_seed(39)
    data = [dict(mel=torch.randn(6, 8, 11, generator=g), f0=90 + 300 * torch.rand(6, 11, generator=g)) for _ in range(7)]
    data[2]["f0"][4, 6:9] = 0
    return Case(m, loss_fn, data, B.adam(m, 2e-3))
