"""Q-learning: q.gather(1, a[:, None]) has shape (B, 1), the target reward + gamma * value has shape (B,). The squared difference is (B, B): every action value
is pulled to the mean target of the batch."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1218_gathered_q_against_flat_target", source="constructed; canonical DQN mistake", symptom="silent", phase="loss",
             cause="broadcasting_loss_shape", op="sub", module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: gather without squeeze", objects="no"),
             quality_limit=1.5, margin=2.0, fixes_that_work=["squeeze"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"squeeze"}
GAMMA, ACTIONS = 0.9, 3


def signal(case, i, r):
    """the two sides of the loss have different shapes"""
    q, y = case.extra["sides"] if "sides" in case.extra else (None, None)
    return q is not None and q != y


def draw(n, seed, bs=32):
    w = torch.randn(6, ACTIONS, generator=torch.Generator().manual_seed(11))
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        s, a = torch.randn(bs, 6, generator=g), torch.randint(0, ACTIONS, (bs,), generator=g)
        v = (s @ w)[torch.arange(bs), a]
        out.append({"s": s, "a": a, "r": torch.tanh(v) * 2, "v_next": 0.3 * torch.sin(v)})
    return out


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, ACTIONS))
    test = S.cat(draw(8, 99))
    extra = {}

    def td(m, b):
        q = m(b["s"]).gather(1, b["a"][:, None])  # <-- origin
        if fix:
            q = q.squeeze(1)
        target = b["r"] + GAMMA * b["v_next"]
        extra["sides"] = (q.shape, target.shape)
        return ((q - target) ** 2).mean()

    def quality(c):                                # mean squared error of the values of the actions taken
        with torch.no_grad():
            q = m(test["s"]).gather(1, test["a"][:, None])[:, 0]
            return float((q - test["r"] - GAMMA * test["v_next"]).pow(2).mean())

    return SCase(m, td, draw(80, 3), torch.optim.Adam(m.parameters(), lr=1e-2), extra=extra, quality=quality)
