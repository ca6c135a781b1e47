"""Two data-parallel replicas. For saving the checkpoint at step 10 the loop unwraps the model and goes on training the unwrapped one: the gradient
exchange is gone and the replicas become two models."""
import copy, torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1211_unwrapped_after_checkpoint", source="constructed", symptom="silent", phase="state",
             cause="replica_drift", op=None, module="replicas.1", module_also=["replicas.0"], bad_rows=None, line_marker="# <-- origin", first_bad_step=10, knowable_at=10,
             static_visible=dict(source="yes: the unwrapped model is kept after saving", objects="from step 10 on: replicas differ"),
             quality_limit=1e-6, fixes_that_work=["keep_wrapper"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"keep_wrapper"}


class Replicated(nn.Module):
    """two replicas with an all-reduce of the gradients"""
    def __init__(s, net, n=2):
        super().__init__()
        s.replicas = nn.ModuleList(copy.deepcopy(net) for _ in range(n))

    def forward(s, x):
        return torch.cat([r(c) for r, c in zip(s.replicas, x.chunk(len(s.replicas)))])

    def all_reduce(s):
        for ps in zip(*(r.parameters() for r in s.replicas)):
            g = torch.stack([p.grad for p in ps]).mean(0)
            for p in ps:
                p.grad = g.clone()


def signal(case, i, r):
    return any(not torch.equal(a, b) for a, b in zip(*(x.parameters() for x in case.model.replicas)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Replicated(S.Classifier())
    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    run = {"wrapped": True}

    def step(case, b, i):
        opt.zero_grad()
        loss = S.ce(m, b)
        loss.backward()
        if run["wrapped"]:
            m.all_reduce()
        opt.step()
        return loss

    def after(case, i):
        if i == 9:
            case.extra["ckpt"] = copy.deepcopy(m.replicas[0].state_dict())
            if not fix:
                run["wrapped"] = False  # <-- origin

    def quality(c):                                # relative distance between the replicas
        a, b = (torch.cat([p.detach().flatten() for p in r.parameters()]) for r in m.replicas)
        return float((a - b).norm() / a.norm())

    return SCase(m, S.ce, S.classes(60, bs=32), opt, step=step, after_step=after, quality=quality)
