"""Two replicas, each with half of the batch and an optimizer of its own. average_gradients() is called after both have stepped: it averages what zero_grad is about to
clear. The replicas drift apart and each has seen half of the data; rank 0 is saved."""
import copy, torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="536_gradients_averaged_after_the_step", source="constructed: hand-written data parallel loop", symptom="silent", phase="loop", cause="replica_drift", op=None, module=None, module_also=["rank0", "rank1"], bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=0, static_visible=dict(source="yes: the exchange comes after step", objects="no: from step 0 on the replicas differ"),
             named=dict(kind="drifts_apart", names=["rank0.fc1.weight", "rank1.fc1.weight"]),
             quality_limit=1e-5, fixes_that_work=["before_the_step"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"before_the_step"}


class Replicas(nn.Module):
    def __init__(s):
        super().__init__()
        s.rank0 = S.Classifier()
        s.rank1 = copy.deepcopy(s.rank0)

    def average_gradients(s):
        for p, q in zip(s.rank0.parameters(), s.rank1.parameters()):
            g = (p.grad + q.grad) / 2
            p.grad.copy_(g)
            q.grad.copy_(g)


def drift(m):
    a, b = list(m.rank0.parameters()), list(m.rank1.parameters())
    return float(sum((p - q).detach().pow(2).sum() for p, q in zip(a, b)) / sum(p.detach().pow(2).sum() for p in a)) ** 0.5


def signal(case, i, r):
    return i >= 0 and drift(case.model) > 1e-6


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Replicas()
    opts = [torch.optim.Adam(x.parameters(), lr=5e-3) for x in (m.rank0, m.rank1)]

    def step(case, b, i):
        losses = []
        for k, (net, o) in enumerate(zip((m.rank0, m.rank1), opts)):
            o.zero_grad()
            losses.append(S.ce(net, {n: v[8 * k:8 * k + 8] for n, v in b.items()}))
            losses[-1].backward()
        if fix:
            m.average_gradients()
        for o in opts:
            o.step()
        if not fix:
            m.average_gradients()  # <-- origin
        return sum(losses) / 2

    return SCase(m, lambda m, b: S.ce(m.rank0, b), S.classes(60), opts[0], step=step, quality=lambda c: drift(m), extra={"optimizers": opts})
