"""CONTROL: variational autoencoder; the weight of the KL term is 0 for thirty steps and then rises, five of eight latent dimensions end unused (the data have three), validation in eval mode and with the
mean code only; the total loss rises while the KL weight does."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1384_control_vae_with_kl_warmup", source="standard practice", looks_like=["detached_graph", "representation_collapse", "eval_mode_in_training"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.25)


class Vae(nn.Module):
    def __init__(s, d=16, z=8):
        super().__init__()
        s.enc, s.mu, s.lv = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Dropout(0.05)), nn.Linear(32, z), nn.Linear(32, z)
        s.dec = nn.Sequential(nn.Linear(z, 32), nn.ReLU(), nn.Linear(32, d))

    def forward(s, x):
        h = s.enc(x)
        mu, lv = s.mu(h), s.lv(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp() if s.training else mu
        return s.dec(z), mu, lv


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Vae(), torch.Generator().manual_seed(84)
    mix, beta = torch.randn(3, 16, generator=g), {"now": 0.0}

    def rows(n):
        return {"x": torch.randn(n, 3, generator=g) @ mix + 0.1 * torch.randn(n, 16, generator=g)}

    data, val, test = [rows(32) for _ in range(250)], rows(64), rows(512)

    def loss_fn(m, b):
        out, mu, lv = m(b["x"])
        return ((out - b["x"]) ** 2).sum(1).mean() - beta["now"] * 0.5 * (1 + lv - mu ** 2 - lv.exp()).sum(1).mean()

    def before(case, i):
        beta["now"] = min(1.0, max(0.0, (i - 30) / 100))

    def after(case, i):
        if i % 25 == 24:
            m.eval()
            with torch.no_grad():
                case.extra["val"] = float(F.mse_loss(m(val["x"])[0], val["x"]))
            m.train()

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=3e-3), before_step=before, after_step=after,
                 quality=lambda c: S.in_eval(m, lambda: F.mse_loss(m(test["x"])[0], test["x"]) / test["x"].var()))
