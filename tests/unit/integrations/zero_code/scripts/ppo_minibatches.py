"""PPO over shuffled index chunks; one old log-probability is far too small."""

# ruff: noqa: B007
# truth: op=exp cause=DX204 samples=any
import torch
import torch.nn as nn
from torch.distributions import Normal

torch.manual_seed(0)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Linear(3, 1)
        self.v = nn.Linear(3, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def evaluate(self, obs, act):
        d = Normal(self.pi(obs), self.log_std.exp())
        return d.log_prob(act).sum(-1), self.v(obs).squeeze(-1), d.entropy().mean()


ac = ActorCritic()
optimizer = torch.optim.Adam(ac.parameters(), lr=3e-4)
for update in range(4):
    obs, act = torch.randn(32, 3), torch.randn(32, 1)
    with torch.no_grad():
        old_logp, values, _ = ac.evaluate(obs, act)
    adv = torch.randn(32)
    ret = adv + values
    if update == 2:
        old_logp[9] = -1000.0
    for epoch in range(2):
        for idx in torch.randperm(32).split(8):
            logp, v, ent = ac.evaluate(obs[idx], act[idx])
            ratio = (logp - old_logp[idx]).exp()  # BUG
            clipped = torch.clamp(ratio, 0.8, 1.2)
            loss_pi = -torch.min(ratio * adv[idx], clipped * adv[idx]).mean()
            loss = loss_pi + 0.5 * ((v - ret[idx]) ** 2).mean() - 0.01 * ent
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
            optimizer.step()
print("weights finite:", all(p.isfinite().all().item() for p in ac.parameters()))
