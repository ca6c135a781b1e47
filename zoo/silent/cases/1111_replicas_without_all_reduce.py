"""Two data-parallel replicas; gradients are averaged only 'if world_size > 1', and world_size comes from a config that does not have the key. Each replica fits its own
shard (the files are sorted by class, so the shards differ); replica 0 is the one that gets saved."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1111_replicas_without_all_reduce", source="constructed from the pattern if world_size > 1: all_reduce(grads)", symptom="silent", phase="loop",
             cause="replica_drift", op=None, module="replicas.0", module_also=["replicas.1"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: default world_size 1 with two replicas", objects="no: after the first step yes (replicas differ)"),
             quality_limit=0.6, margin=1.5, fixes_that_work=["average"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"average"}


class Replicated(nn.Module):
    def __init__(s, m, n=2):
        super().__init__()
        s.replicas = nn.ModuleList(copy.deepcopy(m) for _ in range(n))

    def forward(s, x):                             # every replica works on its own shard
        return torch.cat([r(c) for r, c in zip(s.replicas, x.chunk(len(s.replicas)))])


def average_gradients(m):
    for ps in zip(*(r.parameters() for r in m.replicas)):
        g = sum(p.grad for p in ps) / len(ps)
        for p in ps:
            p.grad.copy_(g)


def signal(case, i, r):
    return any(not torch.equal(p, q) for p, q in zip(case.model.replicas[0].parameters(), case.model.replicas[1].parameters()))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Replicated(S.Classifier()), S.cat(S.classes(16, seed=99))
    cfg = dict(lr=1e-2)
    if fix:
        cfg["world_size"] = 2
    data = []
    for b in S.classes(60, bs=32):
        o = b["y"].argsort(stable=True)            # shard 0: the first classes, shard 1: the last ones
        data.append({k: v[o] for k, v in b.items()})

    def step(case, b, i):
        case.optimizer.zero_grad()
        loss = S.ce(m, b)
        loss.backward()
        if cfg.get("world_size", 1) > 1:  # <-- origin
            average_gradients(m)
        case.optimizer.step()
        return loss

    return SCase(m, S.ce, data, torch.optim.Adam(m.parameters(), lr=cfg["lr"]), step=step, quality=lambda c: S.heldout_ce(m.replicas[0], test))
