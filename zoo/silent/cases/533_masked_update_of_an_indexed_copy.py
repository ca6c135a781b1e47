"""Sparse training with a home-made optimizer: only weights inside the mask move. p.data[mask].sub_(...) indexes with a boolean tensor, that is a copy; the
update lands in it and is thrown away. Biases, which have no mask, do learn."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="533_masked_update_of_an_indexed_copy", source="constructed: advanced indexing returns a copy", symptom="silent", phase="optimizer", cause="update_lost_in_copy", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, tensors=["fc1.weight", "fc2.weight", "head.weight"],
             static_visible=dict(source="yes: in-place method on an advanced index", objects="no"),
             named=dict(kind="never_moves", names=["fc1.weight", "fc2.weight", "head.weight"]),
             quality_limit=0.8, margin=1.5, fixes_that_work=["index_assign", "multiply_mask"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"index_assign", "multiply_mask"}


class MaskedSGD(torch.optim.Optimizer):
    def __init__(s, params, masks, lr=0.05, momentum=0.9, how=None):
        super().__init__(params, dict(lr=lr, momentum=momentum))
        s.masks, s.how = masks, how

    @torch.no_grad()
    def step(s, closure=None):
        for g in s.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                v = s.state[p].setdefault("v", torch.zeros_like(p))
                v.mul_(g["momentum"]).add_(p.grad)
                mask = s.masks.get(p)
                if mask is None:
                    p.sub_(g["lr"] * v)
                elif s.how == "index_assign":
                    p.data[mask] -= g["lr"] * v[mask]
                elif s.how == "multiply_mask":
                    p.sub_(g["lr"] * v * mask)
                else:
                    p.data[mask].sub_(g["lr"] * v[mask])  # <-- origin


def signal(case, i, r):
    """a gradient, a step, a rate, and no movement"""
    return bool(r) and r.stepped and r.grads["fc1.weight"] > 0 and r.moved["fc1.weight"] == 0.0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(), S.cat(S.classes(16, seed=99))
    masks = {p: torch.rand_like(p) < 0.7 for p in m.parameters() if p.dim() > 1}
    return SCase(m, S.ce, S.classes(80), MaskedSGD(m.parameters(), masks, how=fix), quality=lambda c: S.heldout_ce(m, test))
