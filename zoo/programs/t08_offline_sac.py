"""Soft actor-critic from a fixed log of transitions: three optimizers, target network, squashed Gaussian policy."""
import copy
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def log_of_transitions(n=600):
    g = torch.Generator().manual_seed(14)
    s = torch.randn(n, 5, generator=g)
    s[391] *= 400.0  # the arm hit its stop, encoder counts wrapped
    a = torch.rand(n, 2, generator=g) * 1.8 - 0.9
    r = -(a - torch.tanh(s[:, :2])).pow(2).sum(1)
    s2 = torch.randn(n, 5, generator=g)
    return TensorDataset(s, a, r, s2)


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, s):
        mean, log_std = self.net(s).chunk(2, 1)
        log_std = log_std.clamp(-5, 1)
        noise = torch.randn_like(mean)
        raw = mean + noise * log_std.exp()
        action = torch.tanh(raw)
        logp = -0.5 * noise.pow(2) - log_std - 0.5 * math.log(2 * math.pi)
        logp = logp - torch.log(1 - action.pow(2))
        return action, logp.sum(1)


class Agent:
    def __init__(self):
        self.actor = Actor()
        self.q = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))
        self.q_target = copy.deepcopy(self.q).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.q_opt = torch.optim.Adam(self.q.parameters(), 1e-3)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], 1e-3)

    def learn(self, s, a, r, s2):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = self.actor(s2)
            target = r + 0.9 * (self.q_target(torch.cat([s2, a2], 1)).squeeze(1) - alpha * logp2)
        s_n = s / 2
        q_loss = nn.functional.smooth_l1_loss(self.q(torch.cat([s_n.clamp(-3, 3), a], 1)).squeeze(1), target)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()
        pi, logp = self.actor(s_n)
        actor_loss = (alpha * logp - self.q(torch.cat([s_n.clamp(-3, 3), pi], 1)).squeeze(1)).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()
        alpha_loss = -(self.log_alpha * (logp.detach() - 2.0)).mean()
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        with torch.no_grad():
            for p, t in zip(self.q.parameters(), self.q_target.parameters()):
                t.lerp_(p, 0.01)
        return q_loss.item(), actor_loss.item()


torch.manual_seed(6)
agent = Agent()
for epoch in range(2):
    for batch in DataLoader(log_of_transitions(), batch_size=30):
        stats = agent.learn(*batch)
    print(epoch, stats)
params = [*agent.actor.parameters(), *agent.q.parameters(), agent.log_alpha]
print("FINITE" if all(torch.isfinite(p).all() for p in params) else "POISONED")
