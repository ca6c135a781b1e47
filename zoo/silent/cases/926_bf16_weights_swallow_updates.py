"""Layers with weights of size 1 and the scale at run time ('equalised learning rate'), whole network in bf16, Adam at 3e-4: the step is a tenth of the distance between two bf16 numbers near 1. Nearly every weight is
rounded back to what it was; the same run in fp32 learns."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="926_bf16_weights_swallow_updates", source="constructed", symptom="silent", phase="optimizer", cause="lost_update", vocabulary="protocol.CAUSES", nearest=["update_lost_in_copy"], op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, tensors=["l1.weight", "l2.weight", "l3.weight"],
             static_visible=dict(source="no", objects="yes: bf16 weights around 1, lr 3e-4, no fp32 copy"), named=dict(kind="hardly_moves", names=["l1.weight", "l2.weight", "l3.weight"]),
             quality_limit=0.85, margin=1.4, fixes_that_work=["fp32"], fixes_that_do_not=["lr_down", "clip", "longer"])
FIXES = {"fp32"}


class Equal(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.weight, s.k = nn.Parameter(torch.randn(o, i)), i ** -0.5

    def forward(s, x):
        return x @ s.weight.T * s.k


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2, s.l3 = Equal(12, 64), Equal(64, 64), Equal(64, 4)

    def forward(s, x):
        x = x.to(s.l1.weight.dtype)
        return s.l3(F.leaky_relu(s.l2(F.leaky_relu(s.l1(x), 0.2)), 0.2)).float()


def signal(case, i, r):
    """gradients almost everywhere, and four fifths of the weights bit for bit the same"""
    w = torch.cat([p.detach().flatten().float() for p in case.model.parameters()])
    last, case.extra["w"] = case.extra.get("w"), w
    return last is not None and bool(r) and r.grad_norm > 0 and float((w == last).float().mean()) > 0.8


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Net(), S.cat(S.classes(16, seed=99, sep=2.4))
    if not fix:
        m.bfloat16()  # <-- origin
    return SCase(m, S.ce, S.classes(400, sep=2.4), torch.optim.Adam(m.parameters(), lr=3e-4), quality=lambda c: S.heldout_ce(m, test))
