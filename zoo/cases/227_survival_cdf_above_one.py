"""Discrete-time survival: log(1 - cumsum(p)) for subjects censored in the last interval. The cumulative sum of a softmax ends a
rounding error above 1, so the logarithm of a negative residue is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case, train
import blocks as B
TRUTH = dict(id="227_survival_cdf_above_one", source="https://github.com/popov-lab/bmm/issues/376",
             symptom="nan_loss", phase="loss", cause="cancellation", op="log", op_also=["rsub", "sub", "cumsum"], module=None, line_marker="# <-- origin",
             first_bad_step=6, bad_rows=[0], fixes_that_work=["clamp", "survival_directly", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "survival_directly"}


class Hazard(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = B.mlp(4, 16, 24, nn.ReLU)

    def forward(s, x):
        return torch.softmax(s.net(x), -1)


def make(seed=0, fix=None):
    def loss_fn(m, b):
        p = m(b["x"])
        event = p.gather(1, b["t"][:, None])[:, 0]
        if fix == "survival_directly":
            tail = p.flip(1).cumsum(1).flip(1) - p + 1e-8
        else:
            tail = 1 - p.cumsum(1)
            if fix == "clamp":
                tail = tail.clamp_min(1e-7)
        alive = tail.gather(1, b["t"][:, None])[:, 0]
        ll = torch.where(b["dead"], event, alive)
        return -torch.log(ll).mean()  # <-- origin

    g = torch.Generator().manual_seed(4)
    data = [dict(x=torch.randn(5, 4, generator=g), t=torch.randint(0, 22, (5,), generator=g), dead=torch.rand(5, generator=g) > 0.4) for _ in range(10)]
    data[6]["t"][0], data[6]["dead"][0] = 23, False     # alive at the end of the study

    def program(lr):
        torch.manual_seed(seed)
        h = Hazard()
        return h, torch.optim.Adagrad(h.parameters(), lr=lr)

    known = []                                    # the network as it will be at step 6, also with a smaller rate or clipped
    for lr, policy in ((1e-2, ()), (1e-4, ()), (1e-2, ("clip",))):
        h, o = program(lr)
        train(Case(h, loss_fn, data, o), steps=6, policy=policy, light=True)
        known.append(h)
    with torch.no_grad():                         # deterministic search: a subject for whom the rounded sum exceeds one in all of them
        for _ in range(4000):
            x = torch.randn(4, generator=g)
            data[6]["x"][0] = x
            if all(bool(h(data[6]["x"]).cumsum(1)[0, -1] > 1) for h in known):
                break
    m, opt = program(1e-2)
    return Case(m, loss_fn, data, opt)
