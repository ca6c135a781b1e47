"""CONTROL: a VAE with its KL weight annealed from zero: the loss starts small, grows with the weight and falls at last."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="499_control_kl_weight_is_annealed", source="https://arxiv.org/abs/1511.06349", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec, self.beta = B.mlp(8, 16, 4), B.mlp(2, 16, 8), 0.0

    def forward(self, x, eps):
        mu, lv = self.enc(x).chunk(2, -1)
        mu, lv = 4 * mu, 2 * lv
        return self.dec(mu + eps * (lv / 2).exp()), 0.5 * (mu.pow(2) + lv.exp() - 1 - lv).sum(-1).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = VAE(), torch.Generator().manual_seed(5)
    data = [dict(x=0.1 * b["x"], eps=torch.randn(6, 2, generator=g)) for b in B.xy(16)]

    def loss_fn(m, b):
        r, kl = m(b["x"], b["eps"])
        return F.mse_loss(r, b["x"]) + m.beta * kl

    def anneal(case, i):
        case.model.beta = min(1.0, 0.001 * 3.0 ** max(i - 3, 0)) if i > 2 else 0.0

    return Case(m, loss_fn, data, B.adam(m, 3e-3), before_step=anneal)
