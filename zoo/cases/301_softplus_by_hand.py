"""A hinge written as log(1 + exp(x)): one pair is ranked wrong by more than 88 and exp overflows in the loss."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="301_softplus_by_hand", source="common report: pairwise ranking loss with a hand-written softplus",
             symptom="inf_loss", phase="loss", cause="exp_overflow", op="exp", module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0, 5], fixes_that_work=["library_softplus", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"library_softplus", "clamp"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(8, 16, 1, nn.ReLU)

    def loss_fn(m, b):
        gap = (m(b["lose"]) - m(b["win"])).squeeze(-1)
        if fix == "library_softplus":
            return F.softplus(gap).mean()
        if fix == "clamp":
            gap = gap.clamp(max=50.0)
        return torch.log(1 + torch.exp(gap)).mean()  # <-- origin

    g = torch.Generator().manual_seed(7)
    data = [dict(win=torch.randn(6, 8, generator=g), lose=torch.randn(6, 8, generator=g)) for _ in range(10)]
    with torch.no_grad():
        m.fc2.weight.abs_(), m.fc1.weight.abs_()
    for r in (0, 5):
        data[6]["lose"][r] = data[6]["lose"][r].abs() * 500.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
