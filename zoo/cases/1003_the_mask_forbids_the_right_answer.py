"""Choices that are not on offer get a score of -inf. A mislabelled question has its right answer among them: its log-probability is -inf
and the cross entropy infinite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="1003_the_mask_forbids_the_right_answer", source="common report: cross entropy is inf when the target is masked",
             symptom="inf_loss", phase="loss", cause="log_zero", op="nll_loss_forward", op_also=["nll_loss", "neg"], module=None, line_marker="# <-- origin", first_bad_step=5, bad_rows=[3],
             fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"finfo_min"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)), torch.Generator().manual_seed(103)
    low = -1e4 if fix == "finfo_min" else float("-inf")

    def loss_fn(m, b):
        scores = m(b["x"]).masked_fill(~b["offered"], low)
        return F.cross_entropy(scores, b["y"])  # <-- origin

    data = []
    for _ in range(10):
        y = torch.randint(0, 5, (6,), generator=g)
        offered = (torch.rand(6, 5, generator=g) > 0.4).scatter(1, y[:, None], True)
        data.append(dict(x=torch.randn(6, 6, generator=g), offered=offered, y=y))
    data[5]["offered"][3, data[5]["y"][3]] = False
    data[5]["offered"][3, (data[5]["y"][3] + 1) % 5] = True
    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-3))
