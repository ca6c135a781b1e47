"""CONTROL: a small GAN. The fakes are detached in the critic's update; in the generator's update the discriminator is frozen and released again; both losses hover around log 2 and neither falls."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="983_control_gan_alternation", source="standard practice", looks_like=["detached_graph", "frozen_by_mistake", "missing_zero_grad", "optimizer_missing_params"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=1.0)


class Gan(nn.Module):
    def __init__(s):
        super().__init__()
        s.gen = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
        s.disc = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(s, z):
        return s.gen(z)


def real(n, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, generator=g) * torch.tensor([0.5, 1.0]) + torch.tensor([2.0, -1.0])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Gan(), torch.Generator().manual_seed(1)
    opt_g = torch.optim.Adam(m.gen.parameters(), lr=3e-3, betas=(0.5, 0.9))
    opt_d = torch.optim.Adam(m.disc.parameters(), lr=3e-3, betas=(0.5, 0.9))
    data = [{"x": real(64, 10 + k), "z": torch.randn(64, 4, generator=g)} for k in range(300)]

    def loss_fn(m, b):
        return F.softplus(-m.disc(m(b["z"]))).mean()

    def step(case, b, i):
        m.disc.requires_grad_(True)
        opt_d.zero_grad()
        fake = m(b["z"]).detach()
        (F.softplus(-m.disc(b["x"])).mean() + F.softplus(m.disc(fake)).mean()).backward()
        opt_d.step()
        m.disc.requires_grad_(False)
        opt_g.zero_grad()
        loss = loss_fn(m, b)
        loss.backward()
        opt_g.step()
        m.disc.requires_grad_(True)
        return loss

    def quality(c):                                # distance of mean and deviation from those of the data
        with torch.no_grad():
            x, r = m(torch.randn(2000, 4, generator=torch.Generator().manual_seed(3))), real(2000, 3)
            return float((x.mean(0) - r.mean(0)).norm() + (x.std(0) - r.std(0)).norm())

    return SCase(m, loss_fn, data, opt_g, step=step, extra={"optimizers": [opt_g, opt_d]}, quality=quality)
