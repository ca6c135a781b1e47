"""CONTROL: TD learning with a frozen target network that is overwritten by the online network every ten steps; its output is detached, both
sides of the loss have shape (B,)."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1285_control_target_network_copied_every_ten", source="standard practice", looks_like=["reference_aliased", "ema_never_updated", "detached_graph", "broadcasting_loss_shape"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.3)
GAMMA = 0.5


def draw(n, seed):
    w = torch.randn(6, generator=torch.Generator().manual_seed(11)) / 2
    g = torch.Generator().manual_seed(seed)
    s = [torch.randn(32, 6, generator=g) for _ in range(n)]
    return [{"s": x, "r": torch.tanh(x @ w), "next": x} for x in s]    # the state does not change: value = r / (1 - gamma)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    target, test = copy.deepcopy(m).requires_grad_(False), S.cat(draw(8, 99))

    def td(m, b):
        with torch.no_grad():
            y = b["r"] + GAMMA * target(b["next"]).squeeze(-1)
        return F.mse_loss(m(b["s"]).squeeze(-1), y)

    def after(case, i):
        if i % 10 == 9:
            target.load_state_dict(m.state_dict())

    def quality(c):
        with torch.no_grad():
            return float((m(test["s"]).squeeze(-1) - test["r"] / (1 - GAMMA)).pow(2).mean())

    return SCase(m, td, draw(80, 3), torch.optim.Adam(m.parameters(), lr=1e-2), after_step=after, extra={"target": target}, quality=quality)
