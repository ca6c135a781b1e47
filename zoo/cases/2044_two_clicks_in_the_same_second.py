"""A session model feeds log(time since the last click); two clicks in the same second are 0 apart."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2044_two_clicks_in_the_same_second", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="log_zero", op="log", module="gap", line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[2, 3], fixes_that_work=["eps", "clamp", "drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "clamp"}


class Gap(nn.Module):
    def __init__(s, d, fix):
        super().__init__()
        s.lin, s.fix = nn.Linear(1, d), fix

    def forward(s, times):
        dt = times[:, 1:] - times[:, :-1]
        if s.fix == "eps":
            dt = dt + 1.0
        if s.fix == "clamp":
            dt = dt.clamp(min=0.5)
        return s.lin(torch.log(dt)[..., None])  # <-- origin


class Session(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.item, s.gap, s.rnn, s.out = nn.Embedding(30, 12), Gap(12, fix), nn.GRU(12, 12, batch_first=True), nn.Linear(12, 30)

    def forward(s, items, times):
        return s.out(s.rnn(s.item(items[:, 1:]) + s.gap(times))[0][:, -1])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Session(fix)
    g = torch.Generator().manual_seed(83)
    data = [dict(items=torch.randint(0, 30, (5, 7), generator=g), times=torch.cumsum(torch.randint(1, 90, (5, 7), generator=g), 1).float(), y=torch.randint(0, 30, (5,), generator=g)) for _ in range(9)]
    for r in (2, 3):
        data[6]["times"][r, 4] = data[6]["times"][r, 3]
    return Case(m, lambda m, b: F.cross_entropy(m(b["items"], b["times"]), b["y"]), data, B.adam(m, 2e-3))
