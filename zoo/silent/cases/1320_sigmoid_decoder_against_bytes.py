"""Convolutional autoencoder ending in nn.Sigmoid. The input is divided by 255 in forward(), the target is the batch itself, bytes from 0 to 255. All outputs run to 1 and stay there: the
sigmoids are flat, no gradient reaches the network, every picture is reconstructed white."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1320_sigmoid_decoder_against_bytes", source="constructed; the usual question 'my autoencoder outputs white images'", symptom="silent", phase="forward",
             cause="saturated_activation", op="sigmoid", module="out", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=19,
             static_visible=dict(source="yes: target without / 255 against a sigmoid", objects="no: in the first batch yes (targets are far outside of what a sigmoid can give)"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["scaled_target"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"scaled_target"}


class AutoEncoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12))
        s.dec = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1))
        s.out = nn.Sigmoid()

    def forward(s, x):
        return s.out(s.dec(s.enc(x / 255)))


def pictures(n, bs, g):
    out, yy, xx = [], *torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    for _ in range(n):
        c, r = 2 + 4 * torch.rand(bs, 2, 1, 1, generator=g), 1.5 + torch.rand(bs, 1, 1, generator=g)
        d = ((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2).sqrt()
        out.append({"x": (255 * torch.sigmoid(3 * (r - d)))[:, None].round()})
    return out


def signal(case, i, r):
    """outputs are at an end of the sigmoid for every pixel"""
    if i < 0:
        return False
    with torch.no_grad():
        o = case.model(case.batches[i]["x"])
    return float((o * (1 - o) < 1e-3).float().mean()) > 0.95


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = AutoEncoder(), torch.Generator().manual_seed(40)
    data, test = pictures(250, 16, g), pictures(1, 128, g)[0]["x"]

    def loss_fn(m, b):
        return F.mse_loss(m(b["x"]), b["x"] / 255 if fix else b["x"])  # <-- origin

    def quality(c):                                # reconstruction error relative to the variance of the pixels
        with torch.no_grad():
            return float(F.mse_loss(m(test), test / 255) / (test / 255).var())

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality)
