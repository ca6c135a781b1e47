"""PopArt keeps E[r^2] - E[r]^2; a constant return of 3333.3 leaves a small negative number, and the square root is NaN."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="2016_popart_on_a_reward_that_never_changes", source="written for the unseen set, no public report",
             symptom="nan_loss", phase="forward", cause="cancellation", op="sqrt", module="popart", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=None, fixes_that_work=["clamp", "two_pass"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"clamp", "two_pass"}


class PopArt(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.fix = fix
        s.register_buffer("mu", torch.zeros(()))
        s.register_buffer("nu", torch.ones(()))
        s.register_buffer("dev", torch.ones(()))

    def forward(s, ret):
        with torch.no_grad():
            if s.fix == "two_pass":
                s.dev.lerp_((ret - s.mu).pow(2).mean(), 0.5)
            s.mu.lerp_(ret.mean(), 0.5)
            s.nu.lerp_(ret.pow(2).mean(), 0.5)
            if s.fix == "two_pass":
                return (ret - s.mu) / (s.dev + 1e-4).sqrt()
            var = s.nu - s.mu.pow(2)
            if s.fix == "clamp":
                var = var.clamp(min=1e-4)
            return (ret - s.mu) / torch.sqrt(var)  # <-- origin


class Critic(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.net, s.popart = B.mlp(5, 24, 1), PopArt(fix)

    def forward(s, o):
        return s.net(o).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Critic(fix)
    g = torch.Generator().manual_seed(19)
    data = [dict(obs=torch.randn(9, 5, generator=g), ret=3333.3 + (torch.randn(9, generator=g) * 50 if k < 5 else torch.zeros(9))) for k in range(40)]

    def at(case, i):
        if i == 5 and fix != "two_pass":  # the task resets its statistics, as multi-task PopArt does
            case.model.popart.mu.fill_(3333.3)
            case.model.popart.nu.fill_(3333.3 ** 2)

    return Case(m, lambda m, b: (m(b["obs"]) - m.popart(b["ret"])).pow(2).mean(), data[:12], B.adam(m, 1e-3), before_step=at)
