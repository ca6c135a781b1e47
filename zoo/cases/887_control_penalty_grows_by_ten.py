"""CONTROL: augmented Lagrangian: the penalty on the constraint is multiplied by ten every seven steps, so loss and gradient jump by plan; the constraint is met in the end."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="887_control_penalty_grows_by_ten", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(6, 24, 3)
    state = {"rho": 0.1}

    def loss_fn(m, b):
        w = m(b["x"])
        return F.mse_loss(w, b["y"]) + state["rho"] * (w.sum(-1) - 1).square().mean()

    def before(case, i):
        state["rho"] = 0.1 * 10 ** (i // 7)

    g = torch.Generator().manual_seed(87)
    data = [dict(x=torch.randn(12, 6, generator=g), y=2 + 0.2 * torch.randn(12, 3, generator=g)) for _ in range(24)]
    return Case(m, loss_fn, data, B.adam(m, 1e-2), before_step=before, clip_norm=1.0, healthy=lambda log: log[14].loss > 3 * log[13].loss and log[-1].loss < log[14].loss and all(r.loss_ok for r in log))
