"""CONTROL: double DQN with a Polyak target at tau 0.01: for many steps the target is nearly the initial network, it is in no optimizer, has no gradient, and the values it gives are too small for long."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B
TRUTH = dict(id="984_control_slow_target_network", source="standard practice", looks_like=["ema_never_updated", "optimizer_missing_params", "detached_graph", "reference_aliased"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.0)
N, GAMMA, TAU = 6, 0.9, 0.01


class Agent(nn.Module):
    def __init__(s):
        super().__init__()
        s.online = B.mlp(N, 32, 2, act=nn.ReLU)
        s.target = copy.deepcopy(s.online).requires_grad_(False)

    def forward(s, x):
        return s.online(x)


def loss_fn(m, b):
    with torch.no_grad():
        best = m(b["t"]).argmax(-1, keepdim=True)
        y = b["r"] + GAMMA * (1 - b["done"]) * m.target(b["t"]).gather(1, best)[:, 0]
    return F.mse_loss(m(b["s"]).gather(1, b["a"][:, None])[:, 0], y)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, eye, data = Agent(), torch.Generator().manual_seed(0), torch.eye(N), []
    for _ in range(400):
        s, a = torch.randint(0, N, (32,), generator=g), torch.randint(0, 2, (32,), generator=g)
        t = (s + 2 * a - 1).clamp(min=0)
        done = (t >= N).float()
        data.append({"s": eye[s], "a": a, "r": 3 * done, "t": eye[t.clamp(max=N - 1)], "done": done})

    @torch.no_grad()
    def after(case, i):
        for p, q in zip(m.target.parameters(), m.online.parameters()):
            p.lerp_(q, TAU)

    def quality(c):                                # cells in which the policy walks away from the goal
        with torch.no_grad():
            return float((m(eye).argmax(-1) != 1).sum())

    return SCase(m, loss_fn, data, torch.optim.Adam(m.online.parameters(), lr=5e-3), after_step=after, extra={"target": m.target}, quality=quality)
