"""CONTROL: L-BFGS with a closure: every step runs zero_grad and backward several times on the same batch (full-batch fitting of a small curve), by design; many calls per update, steps of very
different size, and towards the end nearly nothing moves because the fit is done."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1382_control_lbfgs_closure", source="standard practice", looks_like=["accumulation_cleared", "repeated_batch", "zero_grad_before_step"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.05)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), torch.Generator().manual_seed(82)

    def curve(n):
        x = 4 * torch.rand(n, 1, generator=g) - 2
        return {"x": x, "y": torch.sin(2 * x) + 0.05 * torch.randn(n, 1, generator=g)}

    full, test = curve(96), curve(256)
    opt = torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=8, history_size=10)

    def loss_fn(m, b):
        return F.mse_loss(m(b["x"]), b["y"])

    def step(case, b, i):
        def closure():
            opt.zero_grad()
            loss = loss_fn(m, b)
            loss.backward()
            return loss
        return opt.step(closure)

    def quality(c):
        with torch.no_grad():
            return float(loss_fn(m, test) / test["y"].var())

    return SCase(m, loss_fn, [full] * 30, opt, step=step, quality=quality)
