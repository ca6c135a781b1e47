"""The first optimizer one writes: for p in group['params']: p = p - lr * p.grad. The right-hand side is a new tensor with a local name; the network of the tutorial never changes,
and the loss goes up and down with the batches."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1308_hand_written_sgd_rebinds_p", source="constructed; the usual question 'w = w - lr * w.grad does not train'", symptom="silent", phase="optimizer",
             cause="update_lost_in_copy", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: assignment to the loop variable", objects="no: after the first step yes (gradients, a step, nothing moved)"),
             named=dict(kind="never_moves", names=["conv1.weight", "conv2.weight", "out.weight"]),
             quality_limit=0.3, margin=2.0, fixes_that_work=["in_place"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"in_place"}


class SGD(torch.optim.Optimizer):
    def __init__(s, params, lr, in_place):
        super().__init__(params, dict(lr=lr))
        s.in_place = in_place

    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if s.in_place:
                    p -= group["lr"] * p.grad
                else:
                    p = p - group["lr"] * p.grad  # <-- origin


class Cnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.conv1, s.conv2, s.out = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1), nn.Linear(16, 2)

    def forward(s, x):
        x = torch.relu(s.conv2(torch.max_pool2d(torch.relu(s.conv1(x)), 2)))
        return s.out(x.amax((2, 3)))


def bars(n, bs, g):                                # a horizontal or a vertical bar in noise
    out = []
    for _ in range(n):
        x, y = 0.3 * torch.randn(bs, 1, 8, 8, generator=g), torch.randint(0, 2, (bs,), generator=g)
        for k in range(bs):
            j = int(torch.randint(0, 8, (1,), generator=g))
            if y[k]:
                x[k, 0, j] += 1
            else:
                x[k, 0, :, j] += 1
        out.append({"x": x, "y": y})
    return out


def signal(case, i, r):
    return bool(r) and r.stepped and r.grad_norm > 0 and r.update_norm == 0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Cnn(), torch.Generator().manual_seed(28)
    data, test = bars(150, 16, g), S.cat(bars(16, 16, g))
    return SCase(m, S.ce, data, SGD(m.parameters(), lr=0.3, in_place=bool(fix)), quality=lambda c: S.heldout_err(m, test))
