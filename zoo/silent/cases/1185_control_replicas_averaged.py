"""CONTROL: two in-process replicas on different shards; their gradients differ at every backward, are averaged before the step, and the replicas stay equal."""
import copy, torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1185_control_replicas_averaged", source="standard practice", looks_like=["replica_drift", "tied_weights_broken"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.5)


class Replicated(nn.Module):
    def __init__(s, m, n=2):
        super().__init__()
        s.replicas = nn.ModuleList(copy.deepcopy(m) for _ in range(n))

    def forward(s, x):
        return torch.cat([r(c) for r, c in zip(s.replicas, x.chunk(len(s.replicas)))])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Replicated(S.Classifier()), S.cat(S.classes(16, seed=99))

    def step(case, b, i):
        case.optimizer.zero_grad()
        loss = S.ce(m, b)
        loss.backward()
        for ps in zip(*(r.parameters() for r in m.replicas)):
            g = sum(p.grad for p in ps) / len(ps)
            for p in ps:
                p.grad.copy_(g)
        case.optimizer.step()
        return loss

    return SCase(m, S.ce, S.classes(60, bs=32), torch.optim.Adam(m.parameters(), lr=1e-2), step=step, quality=lambda c: S.heldout_ce(m.replicas[0], test))
