"""bf16 model with hand-made fp32 master weights. After optimizer.step the loop 'writes them back' with p = q.to(p.dtype), which only rebinds the loop
variable: the masters learn from the gradient of the first weights, the model never changes."""
import torch, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1208_master_weights_not_copied_back", source="constructed", symptom="silent", phase="optimizer",
             cause="update_lost_in_copy", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             tensors=["fc1.weight", "fc2.weight", "head.weight"], named=dict(kind="never_moves", names=["fc1.weight", "head.weight"]),
             static_visible=dict(source="yes: assignment to the loop variable", objects="yes: no parameter of the model is in the optimizer"),
             quality_limit=0.8, margin=1.5, fixes_that_work=["copy_"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"copy_"}


def signal(case, i, r):
    """a step with gradients and no parameter moved"""
    return bool(r) and r.stepped and r.grad_norm > 0 and r.update_norm == 0


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier().bfloat16(), S.cat(S.classes(16, seed=99))
    master = [p.detach().clone().float().requires_grad_() for p in m.parameters()]
    opt = torch.optim.Adam(master, lr=1e-2)

    def loss_fn(m, b):
        return F.cross_entropy(m(b["x"].bfloat16()).float(), b["y"])

    def step(case, b, i):
        m.zero_grad()
        loss = loss_fn(m, b)
        loss.backward()
        for p, q in zip(m.parameters(), master):
            q.grad = p.grad.float()
        opt.step()
        for p, q in zip(m.parameters(), master):
            if fix:
                p.data.copy_(q)
            else:
                p = q.to(p.dtype)  # <-- origin
        return loss

    return SCase(m, loss_fn, S.classes(80), opt, step=step, quality=lambda c: S.in_eval(m, lambda: loss_fn(m, test)))
