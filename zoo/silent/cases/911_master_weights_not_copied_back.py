"""bf16 network, fp32 master weights in the optimizer. The copy back is `for p, q in zip(...): p = q.to(p.dtype)`: a local name gets the new weights, the network never does."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="911_master_weights_not_copied_back", source="constructed", symptom="silent", phase="optimizer", cause="update_lost_in_copy", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, static_visible=dict(source="yes: assignment to the loop variable", objects="no: the optimizer's tensors are none of the model's"),
             named=dict(kind="never_moves", names=["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]),
             quality_limit=0.6, margin=2.0, fixes_that_work=["copy_"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"copy_"}


def loss_fn(m, b):
    return F.huber_loss(m(b["x"].bfloat16())[:, 0].float(), b["y"])


def signal(case, i, r):
    """gradients, a step, and no parameter of the model moved"""
    return bool(r) and r.stepped and r.grad_norm > 0 and r.update_norm == 0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = B.mlp(8, 32, 1, act=nn.Softplus).bfloat16(), S.cat(S.regression(16, seed=9))
    masters = [p.detach().float().clone().requires_grad_(True) for p in m.parameters()]
    opt = torch.optim.SGD(masters, lr=0.1, momentum=0.9, nesterov=True)

    def step(case, b, i):
        m.zero_grad()
        loss = loss_fn(m, b)
        loss.backward()
        for p, q in zip(m.parameters(), masters):
            q.grad = p.grad.float()
        opt.step()
        for p, q in zip(m.parameters(), masters):
            if fix:
                p.data.copy_(q.data)
            else:
                p = q.detach().to(p.dtype)  # <-- origin
        return loss

    return SCase(m, loss_fn, S.regression(150), opt, step=step, extra={"masters": masters}, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
