"""VQGAN habit: at step 12 an adversarial/perceptual term with a large weight joins the reconstruction loss, which jumps. Planned."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="589_control_perceptual_term_starts_late", source="https://github.com/CompVis/taming-transformers (disc_start)", symptom="none", phase="none", cause="none",
             op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])
FIXES = set()


class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv2d(1, 6, 4, 4)
        self.dec = nn.ConvTranspose2d(6, 1, 4, 4)
        self.critic = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)).requires_grad_(False)

    def forward(self, x):
        return self.dec(torch.tanh(self.enc(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    ae = AE()
    clock = {"step": 0}

    def tick(case, i):
        clock["step"] = i

    def loss_fn(ae, x):
        y = ae(x)
        loss = F.l1_loss(y, x)
        if clock["step"] >= 12:
            loss = loss + 400.0 * F.mse_loss(ae.critic(y), ae.critic(x))
        return loss

    imgs = [torch.rand(6, 1, 8, 8) for _ in range(60)]
    return Case(ae, loss_fn, imgs, torch.optim.Adam(ae.parameters(), lr=5e-3, betas=(0.5, 0.9)), before_step=tick,
                healthy=lambda log: sum(r.loss for r in log[-10:]) < sum(r.loss for r in log[12:22]))
