"""A GAN discriminator under spectral norm gets a new, zero-initialised output layer at step 5: sigma is 0 and W / sigma is 0 / 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm
from protocol import Case
import blocks as B
TRUTH = dict(id="2001_spectral_norm_of_a_layer_reset_to_zero", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="zero_division", op="div", module="score.parametrizations.weight.0",
             module_also=["score", "score.parametrizations.weight", ""], line_marker="# <-- origin", first_bad_step=5, bad_rows=None,
             fixes_that_work=["init", "eps"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"init"}


class Critic(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1, s.conv2 = nn.Conv2d(1, 8, 3, stride=2), nn.Conv2d(8, 8, 3)
        s.score = spectral_norm(nn.Linear(8, 1))

    def forward(s, x):
        h = F.leaky_relu(s.conv2(F.leaky_relu(s.conv1(x), 0.2)), 0.2).mean((2, 3))
        return s.score(h)  # <-- origin


def loss_fn(m, b):
    return F.relu(1 - m(b["real"])).mean() + F.relu(1 + m(b["fake"])).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Critic()

    def new_head(case, i):
        if i == 5:
            w = case.model.score.parametrizations.weight.original
            with torch.no_grad():
                nn.init.xavier_uniform_(w) if fix == "init" else nn.init.zeros_(w)

    g = torch.Generator().manual_seed(7)
    data = [dict(real=torch.rand(6, 1, 12, 12, generator=g), fake=torch.randn(6, 1, 12, 12, generator=g)) for _ in range(9)]
    return Case(m, loss_fn, data, B.adam(m, 2e-4, betas=(0.5, 0.999)), before_step=new_head)
