"""Monotonic alignment of text and frames by a forward recursion with torch.logaddexp. Cells that cannot be reached yet are -inf, which is a
legal value; the derivative of logaddexp(-inf, -inf) is NaN."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="629_alignment_lattice_of_logaddexp", source="https://github.com/pytorch/pytorch/issues/49724",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="logaddexp", module="aligner", line_marker="# <-- origin", first_bad_step=0, bad_rows=None,
             fixes_that_work=["finfo_min", "double_where"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"finfo_min", "double_where"}


class Aligner(nn.Module):
    fix = None

    def forward(self, logp):
        batch, frames, tokens = logp.shape
        floor = -1e9 if self.fix == "finfo_min" else float("-inf")
        start = torch.full((batch, tokens), floor)
        start[:, 0] = 0.0
        alpha = start + logp[:, 0]
        for t in range(1, frames):
            stay, move = alpha, torch.cat([torch.full((batch, 1), floor), alpha[:, :-1]], 1)
            if self.fix == "double_where":
                dead = torch.isinf(stay) & torch.isinf(move)
                both = torch.logaddexp(stay.masked_fill(dead, 0.0), move.masked_fill(dead, 0.0)).masked_fill(dead, float("-inf"))
            else:
                both = torch.logaddexp(stay, move)  # <-- origin
            alpha = both + logp[:, t]
        return alpha[:, -1]


class GlowLike(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.text = nn.Embedding(15, d)
        self.frame = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, d))
        self.aligner = Aligner()

    def forward(self, ids, mel):
        diff = self.frame(mel)[:, :, None] - self.text(ids)[:, None]
        return self.aligner(-0.5 * diff.square().sum(-1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = GlowLike(), torch.Generator().manual_seed(61)
    m.aligner.fix = fix
    data = [(torch.randint(0, 15, (4, 5), generator=g), torch.randn(4, 9, 4, generator=g)) for _ in range(8)]
    return Case(m, lambda m, b: -m(*b).mean(), data, torch.optim.Adam(m.parameters(), lr=2e-3))
