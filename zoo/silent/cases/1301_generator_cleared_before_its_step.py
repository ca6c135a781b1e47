"""A small GAN. The clearing of the generator's gradients was put where it is needed for the discriminator's turn, after the generator's backward and before its step: the
discriminator learns, the generator stays as it was drawn."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1301_generator_cleared_before_its_step", source="constructed from the pattern backward(); zero_grad(); step() of two-player loops", symptom="silent", phase="loop",
             cause="zero_grad_before_step", op=None, module="gen", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: zero_grad of the generator stands between its backward and its step", objects="no"),
             named=dict(kind="never_moves", names=["gen.0.weight", "gen.2.weight", "gen.2.bias"]),
             quality_limit=1.2, margin=2.0, fixes_that_work=["zero_grad_first"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"zero_grad_first"}
CENTRE = torch.tensor([2.0, -1.5])


class Gan(nn.Module):
    def __init__(s):
        super().__init__()
        s.gen = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        s.disc = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(s, z):
        return s.gen(z)


def signal(case, i, r):
    """the generator's optimizer steps and no parameter of the generator has a gradient other than 0"""
    return bool(r) and r.stepped and not any(r.moved[n] for n in r.moved if n.startswith("gen."))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Gan(), torch.Generator().manual_seed(21)
    opt_g = torch.optim.Adam(m.gen.parameters(), lr=2e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(m.disc.parameters(), lr=2e-3, betas=(0.5, 0.999))
    data = [{"x": CENTRE + 0.5 * torch.randn(32, 2, generator=g), "z": torch.randn(32, 4, generator=g)} for _ in range(400)]
    zt = torch.randn(512, 4, generator=g)
    one, zero = torch.ones(32, 1), torch.zeros(32, 1)

    def loss_fn(m, b):
        return F.binary_cross_entropy_with_logits(m.disc(m(b["z"])), one)

    def step(case, b, i):
        fake = m(b["z"])
        opt_d.zero_grad()
        d_loss = F.binary_cross_entropy_with_logits(m.disc(b["x"]), one) + F.binary_cross_entropy_with_logits(m.disc(fake.detach()), zero)
        d_loss.backward()
        opt_d.step()
        if fix:
            opt_g.zero_grad()
        g_loss = F.binary_cross_entropy_with_logits(m.disc(fake), one)
        g_loss.backward()
        if not fix:
            opt_g.zero_grad()  # <-- origin
        opt_g.step()
        return g_loss

    def quality(c):                                # distance of the mean of the samples from the mean of the data
        with torch.no_grad():
            return float((m(zt).mean(0) - CENTRE).norm())

    return SCase(m, loss_fn, data, opt_g, step=step, quality=quality, extra={"opt_d": opt_d})
