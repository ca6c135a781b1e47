"""Latent policy: the code is drawn with Normal(...).sample() instead of rsample(), so no gradient ever reaches the encoder; decoder and
loss look alive."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="927_sample_instead_of_rsample", source="written for this set after a common mistake; no single report",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, module="encoder", module_also=["encoder.fc1", "encoder.fc2"], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["rsample"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"rsample"}


class Latent(nn.Module):
    reparam = False

    def __init__(s):
        super().__init__()
        s.encoder, s.decoder = B.mlp(8, 24, 8), B.mlp(4, 24, 8)

    def forward(s, x):
        mu, raw = s.encoder(x).chunk(2, -1)
        q = torch.distributions.Normal(mu, F.softplus(raw) + 1e-2)
        return s.decoder(q.rsample() if s.reparam else q.sample())


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["x"])


def make(seed=0, fix=None):
    m = Latent()
    m.reparam = bool(fix)
    return Case(m, loss_fn, B.xy(12, bs=16), B.adam(m, 3e-3), healthy=lambda log: all(r.grads["encoder.fc1.weight"] for r in log))
