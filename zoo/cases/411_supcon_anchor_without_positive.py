"""Supervised contrastive loss: the log is taken of the summed probability of the positives; an anchor that is alone in its class
has none."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="411_supcon_anchor_without_positive", source="common report: SupCon loss of an anchor without positives",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", module=None, line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[6], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class SupCon(nn.Module):
    def __init__(self, t=0.2, fix=None):
        super().__init__()
        self.t, self.fix = t, fix

    def _log(self, p):
        if self.fix == "eps":
            p = p + 1e-6
        if self.fix == "clamp":
            p = p.clamp_min(1e-6)
        return torch.log(p)  # <-- origin

    def __call__(self, z, y):  # a plain callable: never part of the model
        sim = (z @ z.T / self.t).fill_diagonal_(-1e4)
        p = F.softmax(sim, -1)
        pos = (y[:, None] == y).float().fill_diagonal_(0)
        return -self._log((p * pos).sum(-1)).mean()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, padding=1)
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        return F.normalize(self.proj(F.relu(self.conv(x)).amax(-1)), dim=-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    enc, crit, g, data = Encoder(), SupCon(fix=fix), torch.Generator().manual_seed(5), []
    for _ in range(7):
        y = torch.arange(8) % 3
        data.append(dict(wave=torch.randn(8, 4, 12, generator=g) + y[:, None, None], label=y))
    data[3]["label"][6] = 9
    return Case(enc, lambda m, b: crit(m(b["wave"]), b["label"]), data, B.adam(enc, 1e-3))
