"""Two data-parallel replicas. Micro-batches that do not end an accumulation window run under no_sync; the condition was written as `i % accumulation == 0`, which is true for every i when accumulation
is 1. No gradient is ever exchanged; each replica learns the season of its own half of the batch."""
import contextlib, copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1311_no_sync_at_every_micro_batch", source="constructed from the pattern with model.no_sync() around accumulated micro-batches", symptom="silent", phase="loop",
             cause="replica_drift", op=None, module="replicas.0", module_also=["replicas.1"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: the condition is true for every i when accumulation is 1", objects="no: after the first step yes (replicas differ)"),
             quality_limit=0.3, margin=2.0, fixes_that_work=["sync_on_last"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"sync_on_last"}
ACC = 1


class Lstm(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.out = nn.LSTM(2, 16, batch_first=True), nn.Linear(16, 1)

    def forward(s, x):
        return s.out(s.rnn(x)[0][:, -1]).squeeze(-1)


class DDP(nn.Module):
    def __init__(s, m, n=2):
        super().__init__()
        s.replicas, s.require_sync = nn.ModuleList(copy.deepcopy(m) for _ in range(n)), True

    def forward(s, x):
        return torch.cat([r(c) for r, c in zip(s.replicas, x.chunk(len(s.replicas)))])

    @contextlib.contextmanager
    def no_sync(s):
        s.require_sync = False
        yield
        s.require_sync = True

    def backward(s, loss):
        loss.backward()
        if s.require_sync:
            for ps in zip(*(r.parameters() for r in s.replicas)):
                g = sum(p.grad for p in ps) / len(ps)
                for p in ps:
                    p.grad.copy_(g)


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def series(n, bs, g):                              # first half of a batch: season 0, second half: season 1 (the second input says which)
    out = []
    for _ in range(n):
        x, s = torch.randn(bs, 8, 1, generator=g), (torch.arange(bs) >= bs // 2).float()
        y = torch.where(s > 0, x[:, -1, 0] - 0.5 * x[:, -2, 0], -x[:, -1, 0] - 0.5 * x[:, -2, 0])
        out.append({"x": torch.cat([x, s[:, None, None].expand(bs, 8, 1)], -1), "y": y})
    return out


def signal(case, i, r):
    a, b = case.model.replicas
    return any(not torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = DDP(Lstm()), torch.Generator().manual_seed(31)
    data, test = series(250, 32, g), series(1, 512, g)[0]

    def step(case, b, i):
        last = (i + 1) % ACC == 0
        skip = not last if fix else i % ACC == 0  # <-- origin
        with m.no_sync() if skip else contextlib.nullcontext():
            loss = loss_fn(m, b)
            m.backward(loss)
        if last:
            case.optimizer.step()
            case.optimizer.zero_grad()
        return loss

    def quality(c):                                # the replica that is saved, on both seasons
        with torch.no_grad():
            return float(F.mse_loss(m.replicas[0](test["x"]), test["y"]))

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-2), step=step, quality=quality)
