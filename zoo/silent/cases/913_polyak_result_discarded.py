"""DQN with a Polyak target, which is also what gets deployed. torch.lerp(target, online, tau) instead of target.lerp_: the result is thrown away, the target keeps its initial values,
every bootstrapped value is the first random guess."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B
TRUTH = dict(id="913_polyak_result_discarded", source="constructed", symptom="silent", phase="state", cause="ema_never_updated", op="lerp", module=None, bad_rows=None,
             line_marker="# <-- origin", first_bad_step=0, knowable_at=10, static_visible=dict(source="yes: result of torch.lerp unused", objects="no: extra['target'] bit for bit as at the start"),
             quality_limit=0.35, margin=1.8, fixes_that_work=["in_place"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"in_place"}
N, GAMMA, TAU = 7, 0.9, 0.05


def transitions(n, seed, bs=32):
    """corridor of N cells, action 1 to the right; reward 1 and the end on leaving the last cell"""
    g, out, eye = torch.Generator().manual_seed(seed), [], torch.eye(N)
    for _ in range(n):
        s, a = torch.randint(0, N, (bs,), generator=g), torch.randint(0, 2, (bs,), generator=g)
        t = (s + 2 * a - 1).clamp(min=0)
        done = (t >= N).float()
        out.append({"s": eye[s], "a": a, "r": done, "t": eye[t.clamp(max=N - 1)], "done": done})
    return out


def signal(case, i, r):
    """ten steps of training and the averaged network has not moved by one bit"""
    t = torch.cat([p.flatten() for p in case.artefact.parameters()])
    first = case.extra.setdefault("t0", t.clone())
    return i >= 10 and torch.equal(t, first)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = B.mlp(N, 48, 2, act=nn.ReLU)
    target = copy.deepcopy(m).requires_grad_(False)

    def loss_fn(m, b):
        with torch.no_grad():
            y = b["r"] + GAMMA * (1 - b["done"]) * target(b["t"]).max(-1).values
        return F.smooth_l1_loss(m(b["s"]).gather(1, b["a"][:, None])[:, 0], y)

    @torch.no_grad()
    def after(case, i):
        for pt, p in zip(target.parameters(), m.parameters()):
            if fix:
                pt.lerp_(p, TAU)
            else:
                torch.lerp(pt, p, TAU)  # <-- origin

    def quality(c):                                # error of the deployed values, best action of each cell
        with torch.no_grad():
            return float((target(torch.eye(N))[:, 1] - GAMMA ** torch.arange(N - 1, -1, -1.0)).abs().mean())

    return SCase(m, loss_fn, transitions(500, 0), torch.optim.Adam(m.parameters(), lr=3e-3), after_step=after, extra={"target": target}, artefact=target, quality=quality)
