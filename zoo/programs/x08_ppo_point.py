"""PPO on a point-mass task; minibatches from a generator over the rollout."""
import torch
import torch.nn as nn
from torch.distributions import Normal


class ActorCritic(nn.Module):
    def __init__(self, obs=4, act=2, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.mu = nn.Linear(hidden, act)
        self.value = nn.Linear(hidden, 1)
        self.log_std = nn.Parameter(torch.full((act,), -0.5))

    def forward(self, obs):
        h = self.body(obs)
        return Normal(self.mu(h), self.log_std.exp()), self.value(h).squeeze(-1)


class PointEnv:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def reset(self, horizon):
        self.pos = torch.rand(2, generator=self.g) * 2 - 1
        self.vel = torch.zeros(2)
        self.left = horizon
        return torch.cat([self.pos, self.vel])

    def step(self, action):
        self.vel = 0.8 * self.vel + 0.1 * action.clamp(-1, 1)
        self.pos = self.pos + self.vel
        self.left -= 1
        return torch.cat([self.pos, self.vel]), -float(self.pos.norm()), self.left == 0


@torch.no_grad()
def collect(policy, env, horizon):
    obs, act, logp, rew, val = [], [], [], [], []
    o, done = env.reset(horizon), False
    while not done:
        dist, v = policy(o)
        a = dist.sample()
        obs.append(o), act.append(a), logp.append(dist.log_prob(a).sum(-1)), val.append(v)
        o, r, done = env.step(a)
        rew.append(r)
    returns, running = [], 0.0
    for r in reversed(rew):
        running = r + 0.95 * running
        returns.insert(0, running)
    returns = torch.tensor(returns)
    values = torch.stack(val)
    return torch.stack(obs), torch.stack(act), torch.stack(logp), returns, returns - values


def minibatches(rollout, size):
    n = len(rollout[0])
    order = torch.randperm(n)
    for i in range(0, n, size):
        pick = order[i : i + size]
        yield tuple(part[pick] for part in rollout)


def update(policy, optimizer, rollout, epochs=2, clip=0.2):
    for _ in range(epochs):
        for obs, act, old_logp, returns, adv in minibatches(rollout, 16):
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            dist, value = policy(obs)
            ratio = (dist.log_prob(act).sum(-1) - old_logp).exp()
            surrogate = torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv)
            loss = -surrogate.mean() + 0.5 * (value - returns).pow(2).mean() - 0.01 * dist.entropy().sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(3)
    policy, env = ActorCritic(), PointEnv(8)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, eps=1e-5)
    for iteration, horizon in enumerate([48, 40, 56, 33, 48, 40]):
        rollout = collect(policy, env, horizon)
        update(policy, optimizer, rollout)
        print(f"iteration {iteration} return {rollout[3][0].item():.3f}")
    state = policy.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
