"""VQ autoencoder that forgets the straight-through estimator: argmin has no derivative, so the reconstruction loss trains decoder
and codebook while the encoder gets no gradient at all."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="242_codebook_without_straight_through", source="common report: VQ-VAE encoder does not train",
             symptom="silent", phase="backward", cause="no_trainable_grad", op=None, op_also=["argmin", "embedding"], module="encoder", module_also=["quantise", "encoder.fc1", "encoder.fc2"], line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["straight_through"], fixes_that_do_not=["lr_down", "clip", "skip_batch", "zero_nan_grads"])
FIXES = {"straight_through"}


class Quantise(nn.Module):
    fix = None

    def __init__(s, k, d):
        super().__init__()
        s.codes = nn.Embedding(k, d)

    def forward(s, z):
        idx = torch.cdist(z, s.codes.weight).argmin(-1)  # <-- origin
        q = s.codes(idx)
        if s.fix == "straight_through":
            return z + (q - z).detach(), (q - z.detach()).pow(2).mean() + 0.25 * (q.detach() - z).pow(2).mean()
        return q, (q - z.detach()).pow(2).mean()


class VQ(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.quantise, s.decoder = B.mlp(8, 16, 4), Quantise(12, 4), B.mlp(4, 16, 8)

    def forward(s, x):
        q, commit = s.quantise(s.encoder(x))
        return s.decoder(q), commit


def loss_fn(m, b):
    y, commit = m(b["x"])
    return F.mse_loss(y, b["x"]) + commit


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = VQ()
    m.quantise.fix = fix
    return Case(m, loss_fn, B.xy(9, bs=10), B.adam(m, 3e-3), healthy=lambda log: all(g for n, g in log[-1].grads.items() if n.startswith("encoder")))
