"""GAN discriminator with binary cross entropy written out: sigmoid saturates at exactly 1 for a real image, so the fake term
is 0 * log(0)."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1325_discriminator_bce_saturated", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="loss", cause="log_zero", op="log", op_also=["mul", "log1p"], module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=[3], fixes_that_work=["eps", "with_logits", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"eps", "with_logits"}


class Disc(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.fc = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1), nn.Linear(16, 1)

    def forward(s, x):
        h = F.leaky_relu(s.c2(F.leaky_relu(s.c1(x), 0.2)), 0.2)
        return s.fc(h.mean([2, 3])).squeeze(1)


def make(seed=0, fix=None):
    m, g = Disc(), torch.Generator().manual_seed(3)
    tiny = 1e-6 if fix == "eps" else 0.0

    def loss_fn(m, b):
        z, y = m(b["img"]), b["real"]
        if fix == "with_logits":
            return F.binary_cross_entropy_with_logits(z, y)
        p = torch.sigmoid(z)
        hit = y * torch.log(p + tiny)
        miss = (1 - y) * torch.log(1 - p + tiny)  # <-- origin
        return -(hit + miss).mean()

    data = [dict(img=torch.randn(6, 1, 12, 12, generator=g), real=torch.randint(0, 2, (6,), generator=g).float()) for _ in range(11)]
    with torch.no_grad():                         # a bright image that this discriminator is sure of
        far = torch.full((1, 1, 12, 12), 1.0)
        data[7]["img"][3] = far * 3000 * torch.sign(m(far * 3000))
        m.fc.bias.fill_(0.0)
        if float(m(data[7]["img"][3:4])) < 0:
            m.fc.weight.neg_()
    data[7]["real"][3] = 1.0
    return Case(m, loss_fn, data, B.adam(m, 1e-4))
