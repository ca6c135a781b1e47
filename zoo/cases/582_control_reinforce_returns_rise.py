"""Actor-critic on episodes whose returns grow twentyfold as the agent gets better: loss and value targets rise, and that is success."""
import torch
import torch.nn as nn
from protocol import Case

TRUTH = dict(id="582_control_reinforce_returns_rise", source="written for this set, after a kind of report often seen: value loss increases", symptom="none", phase="none",
             cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])
FIXES = set()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, s):
        h = self.trunk(s)
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def a2c(model, ep):
    dist, value = model(ep["s"])
    adv = ep["ret"] - value
    return -(dist.log_prob(ep["a"]) * adv.detach()).mean() + 0.5 * adv.pow(2).mean() - 0.01 * dist.entropy().mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = ActorCritic()
    eps = []
    for k in range(32):
        length = 10 + 6 * k
        steps = torch.arange(length, 0, -1).float()
        ret = (1 - 0.99 ** steps) / 0.01
        eps.append({"s": torch.randn(length, 4), "a": torch.randint(0, 2, (length,)), "ret": ret})
    return Case(model, a2c, eps, torch.optim.Adam(model.parameters(), lr=1e-3), clip_norm=0.5)
