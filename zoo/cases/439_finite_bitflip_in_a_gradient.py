"""One entry of one gradient is multiplied by 2^64 at step 6 (an exponent bit): finite, and plain SGD carries it into the weight."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="439_finite_bitflip_in_a_gradient", source="https://arxiv.org/abs/2102.11245", symptom="spike", phase="backward", cause="transient_fault", op=None,
             module="dec.fc1", line_marker=None, tensor="dec.fc1.weight", tensor_kind="grad", first_bad_step=6, bad_rows=None,
             fixes_that_work=["recompute_step", "clip"], fixes_that_do_not=["lr_down", "zero_nan_grads", "skip_batch"])
FIXES = {"recompute_step"}


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = B.mlp(8, 16, 4), B.mlp(2, 16, 8, nn.ReLU)

    def forward(self, x, eps):
        mu, lv = self.enc(x).chunk(2, -1)
        lv = lv.clamp(-6, 4)
        z = mu + eps * (0.5 * lv).exp()
        return self.dec(z), mu, lv


def elbo(m, b):
    r, mu, lv = m(b["x"], b["eps"])
    return F.mse_loss(r, b["x"]) + 0.01 * (mu.pow(2) + lv.exp() - 1 - lv).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, g = VAE(), B.xy(10), torch.Generator().manual_seed(4)
    data = [dict(x=b["x"], eps=torch.randn(6, 2, generator=g)) for b in data]

    def fault(case, i):
        if i == 6 and fix != "recompute_step":
            case.model.dec.fc1.weight.grad.view(-1)[9] *= 2.0**64

    case = Case(m, elbo, data, B.sgd(m, 0.05), after_backward=fault)
    case.healthy = lambda log: all(r.loss_ok and r.grad_ok for r in log) and max(r.loss for r in log) < 5 * log[0].loss
    return case
