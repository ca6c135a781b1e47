"""Adaptive gradient clipping bounds each row's gradient by 1 percent of the row's norm (at least 0.001). The head starts at zero: its bound is
1e-5 and stays there, and through the zero head the trunk gets next to nothing."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="512_adaptive_clipping_of_a_zero_head", source="constructed; the NFNet recipe excludes the classifier for this reason", symptom="silent", phase="optimizer",
             cause="clip_throttles", op=None, module="head", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=4, tensors=["head.weight", "head.bias"],
             static_visible=dict(source="no: unitwise clipping over all parameters and zeros_ on the head together are a hint", objects="yes: a zero parameter under a bound proportional to its norm"),
             named=dict(kind="throttled", names=["head.weight"]),
             quality_limit=0.9, margin=1.4, fixes_that_work=["not_the_head", "adam"], fixes_that_do_not=["lr_down", "longer"])
FIXES = {"not_the_head", "adam"}


@torch.no_grad()
def agc(params, factor=0.01, eps=1e-3):
    worst = 1.0
    for p in params:
        if p.grad is None:
            continue
        dim = 1 if p.dim() > 1 else None
        w = (p.norm(dim=dim, keepdim=True) if dim else p.abs()).clamp_min(eps)
        g = (p.grad.norm(dim=dim, keepdim=True) if dim else p.grad.abs()).clamp_min(1e-12)
        ratio = (factor * w / g).clamp_max(1.0)
        worst = min(worst, float(ratio.min()) if p.dim() > 1 else 1.0)
        p.grad.mul_(ratio)  # <-- origin
    return worst


def signal(case, i, r):
    """five steps in a row in which some row of a matrix was shortened more than a thousand-fold"""
    case.extra["n"] = case.extra.get("n", 0) + 1 if r and case.extra["worst"] < 1e-3 else 0
    return case.extra["n"] >= 5 and isinstance(case.optimizer, torch.optim.SGD)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    nn.init.zeros_(m.head.weight)
    nn.init.zeros_(m.head.bias)
    opt = torch.optim.Adam(m.parameters(), lr=1e-2) if fix == "adam" else torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    clipped = [p for n, p in m.named_parameters() if not (fix == "not_the_head" and n.startswith("head"))]

    def step(case, b, i):
        opt.zero_grad()
        loss = S.ce(m, b)
        loss.backward()
        case.extra["worst"] = agc(clipped)
        opt.step()
        return loss

    return SCase(m, S.ce, S.classes(100), opt, step=step, quality=lambda c: S.heldout_ce(m, test), extra={"worst": 1.0})
