"""Policy gradient with heavy-tailed rewards: single episodes are a thousand times larger than the rest, and that is normal."""
import hashlib

import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.manual_seed(0)
rng = torch.Generator().manual_seed(1)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
baseline = nn.Linear(4, 1)
params = [*policy.parameters(), *baseline.parameters()]
opt = torch.optim.Adam(params, lr=2e-3)


def reward(obs, act):
    base = (act == obs[:, :3].argmax(1)).float()
    pareto = (1 - torch.rand(len(obs), generator=rng)).pow(-1 / 1.1)
    return base * pareto


def episode(n=32):
    obs = torch.randn(n, 4, generator=rng)
    dist = Categorical(logits=policy(obs))
    u = torch.rand(n, 1, generator=rng)
    act = (u > dist.probs.cumsum(-1)).sum(-1).clamp(max=2)
    return obs, dist, act, reward(obs, act)


best = 0.0
for k in range(300):
    obs, dist, act, rew = episode()
    value = baseline(obs).squeeze(1)
    adv = (rew - value).detach()
    loss = -(dist.log_prob(act) * adv).mean() + 0.5 * (value - rew).pow(2).mean() - 0.01 * dist.entropy().mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    best = max(best, float(rew.max()))
    if k % 60 == 0:
        print(k, "mean reward", round(float(rew.mean()), 3), "largest so far", round(best, 1))
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in params)).hexdigest())
