"""Prioritised replay without priorities: every entry has priority 1 and nobody updates it; sorted() is stable, so the 'top 16' are the sixteen oldest entries at every step. New experience is stored and never used."""
import random, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="918_replay_returns_the_oldest", source="constructed", symptom="silent", phase="data", cause="repeated_batch", op=None, module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=4, knowable_at=5, static_visible=dict(source="partly: sorted by a key that is never written", objects="no: the rows that enter the model are the same at every step while the buffer grows"),
             quality_limit=0.17, margin=1.8, fixes_that_work=["sample"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"sample"}
BS = 16


class Value(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2, s.l3 = nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(s, x):
        return s.l3(F.selu(s.l2(F.selu(s.l1(x))))).squeeze(-1)


class Replay:
    def __init__(s, seed, uniform):
        s.items, s.rng, s.uniform = [], random.Random(seed), uniform

    def push(s, x, y):
        s.items += [dict(x=a, y=b, prio=1.0, k=len(s.items) + j) for j, (a, b) in enumerate(zip(x, y))]

    def sample(s):
        if s.uniform:
            return s.rng.sample(s.items, BS)
        return sorted(s.items, key=lambda e: -e["prio"])[:BS]  # <-- origin


def loss_fn(m, b):
    return F.smooth_l1_loss(m(b["x"]), b["y"])


def signal(case, i, r):
    """the same rows three times running out of a growing buffer"""
    h = case.extra["drawn"]
    return len(h) >= 3 and h[-1] == h[-2] == h[-3]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test, drawn = Value(), S.cat(S.regression(16, seed=9)), []
    buf, opt = Replay(seed, bool(fix)), torch.optim.RMSprop(m.parameters(), lr=1e-3, centered=True)

    def step(case, b, i):
        buf.push(b["x"], b["y"])
        if len(buf.items) < BS:
            return torch.zeros(())
        rows = buf.sample()
        drawn.append([e["k"] for e in rows])
        loss = loss_fn(m, {"x": torch.stack([e["x"] for e in rows]), "y": torch.stack([e["y"] for e in rows])})
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    def quality(c):                                # in units of the error of the constant 0
        return S.in_eval(m, lambda: loss_fn(m, test)) / float(F.smooth_l1_loss(0 * test["y"], test["y"]))

    return SCase(m, loss_fn, S.regression(220, bs=4), opt, step=step, extra={"drawn": drawn}, quality=quality)
