"""A VQ layer sets its codebook by one k-means step on the first batch: a code to which no vector is closest gets the mean of nothing, 0/0, and
the buffer keeps it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="454_codebook_from_the_first_batch", source="common report: k-means initialisation of VQ codebooks with empty clusters", symptom="nan_loss", phase="forward", cause="zero_division",
             op="div", module="vq", line_marker="# <-- origin", first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "clamp"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class VQ(nn.Module):
    def __init__(self, n, d, fix):
        super().__init__()
        self.register_buffer("codes", torch.randn(n, d))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        self.fix = fix

    @torch.no_grad()
    def _lloyd(self, z):
        near = F.one_hot(torch.cdist(z, self.codes).argmin(-1), len(self.codes)).to(z)
        count = near.sum(0)[:, None]
        count = count + 1e-5 if self.fix == "eps" else count.clamp(min=1) if self.fix == "clamp" else count
        self.codes.copy_(near.T @ z / count)  # <-- origin

    def forward(self, z):
        if not self.ready:
            self._lloyd(z)
            self.ready.fill_(True)
        soft = (-torch.cdist(z, self.codes).pow(2)).softmax(-1)
        q = soft @ self.codes
        return q, F.mse_loss(q, z)


class Codec(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.enc, self.vq, self.dec = nn.Linear(8, 4), VQ(16, 4, fix), nn.Linear(4, 8)

    def forward(self, x):
        q, commit = self.vq(self.enc(x))
        return F.mse_loss(self.dec(q), x) + 0.25 * commit


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Codec(fix)
    return Case(m, lambda m, b: m(b["x"]), B.xy(6, bs=10), B.adam(m, 1e-3))
