"""CONTROL: a policy with illegal actions at -inf. Log-probability and entropy bonus come from torch.distributions.Categorical, which clamps
the logits before it multiplies: everything is finite, forward and backward, even where only one action is legal."""
import torch, torch.nn as nn
from torch.distributions import Categorical
from protocol import Case
TRUTH = dict(id="785_control_entropy_of_a_masked_categorical", source="common sight: invalid action masking (Huang & Ontanon 2020)", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Sequential(nn.Linear(10, 24), nn.Tanh()), nn.Linear(24, 5), nn.Linear(24, 1)

    def forward(self, obs, legal):
        h = self.body(obs)
        return Categorical(logits=self.pi(h).masked_fill(~legal, float("-inf"))), self.v(h).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Policy(), torch.Generator().manual_seed(93)
    data = []
    for _ in range(12):
        legal = torch.rand(10, 5, generator=g) > 0.5
        act = torch.randint(0, 5, (10,), generator=g)
        legal[torch.arange(10), act] = True
        legal[0] = torch.arange(5) == act[0]
        data.append({"obs": torch.randn(10, 10, generator=g), "legal": legal, "act": act, "ret": torch.randn(10, generator=g)})

    def a2c(m, b):
        dist, value = m(b["obs"], b["legal"])
        adv = (b["ret"] - value).detach()
        return -(adv * dist.log_prob(b["act"])).mean() + 0.5 * (b["ret"] - value).square().mean() - 0.01 * dist.entropy().mean()

    return Case(m, a2c, data, torch.optim.RMSprop(m.parameters(), lr=7e-4, alpha=0.99, eps=1e-5), clip_norm=0.5)
