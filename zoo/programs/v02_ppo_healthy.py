"""PPO with discrete actions, masked by -inf; observations scaled by a running mean kept in numpy; stops an epoch early when the policy moved too far."""
import hashlib

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class RunningStat:
    def __init__(self, d):
        self.n, self.mean, self.m2 = 0, np.zeros(d), np.zeros(d)

    def push(self, x):
        self.n += 1
        delta = x - self.mean
        self.mean += delta / self.n
        self.m2 += delta * (x - self.mean)

    @property
    def std(self):
        with np.errstate(all="ignore"):
            return np.where(self.n > 1, np.sqrt(self.m2 / np.float64(self.n - 1)), 1.0) + 1e-6


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, 5), nn.Linear(32, 1)

    def forward(self, x, legal):
        h = self.body(x)
        return Categorical(logits=self.pi(h).masked_fill(~legal, float("-inf"))), self.v(h).squeeze(-1)


def rollout(agent, stat, rng, steps=64):
    xs, masks, acts, logps, rewards, values = [], [], [], [], [], []
    state = rng.normal(size=4)
    for t in range(steps):
        stat.push(state)
        x = torch.tensor((state - stat.mean) / stat.std, dtype=torch.float32)
        legal = torch.tensor(rng.random(5) < 0.7)
        legal[0] = True
        with torch.no_grad():
            dist, value = agent(x, legal)
            a = dist.sample()
        xs.append(x), masks.append(legal), acts.append(a), logps.append(dist.log_prob(a)), values.append(value)
        state = 0.9 * state + 0.1 * int(a) + 0.3 * rng.normal(size=4)
        rewards.append(float(-(state**2).sum()) if t % 50 else -4000.0)
    returns, run = [], 0.0
    for r in reversed(rewards):
        run = r + 0.95 * run
        returns.append(run)
    return [torch.stack(x) for x in (xs, masks, acts, logps, values)], torch.tensor(returns[::-1])


def update(agent, opt, data, returns):
    x, legal, a, old, values = data
    adv = returns - values
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for epoch in range(4):
        for idx in torch.randperm(len(x)).split(16):
            dist, v = agent(x[idx], legal[idx])
            logp = dist.log_prob(a[idx])
            if (old[idx] - logp).mean() > 0.02:
                return epoch
            ratio = (logp - old[idx]).exp()
            loss = -torch.min(ratio * adv[idx], ratio.clamp(0.8, 1.2) * adv[idx]).mean() + 0.5 * (v - returns[idx]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()
    return 4


torch.manual_seed(1)
rng = np.random.default_rng(2)
agent, stat = Agent(), RunningStat(4)
opt = torch.optim.Adam(agent.parameters(), 1e-3)
for it in range(8):
    print(it, update(agent, opt, *rollout(agent, stat, rng)))
print("FINITE" if all(torch.isfinite(p).all() for p in agent.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in agent.parameters())).hexdigest())
