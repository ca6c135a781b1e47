"""PPO on a toy control problem; episodes end when they end, so the last minibatch of a rollout has any size."""
import torch
import torch.nn as nn
from torch.distributions import Normal


class ActorCritic(nn.Module):
    def __init__(self, obs=3, act=1):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs, 32), nn.Tanh(), nn.Linear(32, act))
        self.v = nn.Sequential(nn.Linear(obs, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.zeros(act) - 0.5)

    def dist(self, obs):
        return Normal(self.pi(obs), self.log_std.exp())


class Cart:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def reset(self):
        self.x, self.t = torch.randn(3, generator=self.g) * 0.3, 0
        self.limit = int(torch.randint(12, 40, (1,), generator=self.g))
        return self.x

    def step(self, a):
        self.x = 0.95 * self.x + 0.1 * a + 0.05 * torch.randn(3, generator=self.g)
        self.t += 1
        return self.x, float(-self.x.pow(2).sum()), self.t >= self.limit


class PPO:
    def __init__(self, env, minibatch=16, epochs=2, clip=0.2):
        self.env, self.minibatch, self.epochs, self.clip = env, minibatch, epochs, clip
        self.net = ActorCritic()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=3e-3, eps=1e-5)

    @torch.no_grad()
    def collect(self, episodes=3):
        obs, acts, logps, rets = [], [], [], []
        for _ in range(episodes):
            o, done, rewards = self.env.reset(), False, []
            while not done:
                d = self.net.dist(o)
                a = d.sample()
                obs.append(o), acts.append(a), logps.append(d.log_prob(a).sum())
                o, r, done = self.env.step(a)
                rewards.append(r)
            ret, out = 0.0, []
            for r in reversed(rewards):
                ret = r + 0.97 * ret
                out.append(ret)
            rets += out[::-1]
        return torch.stack(obs), torch.stack(acts), torch.stack(logps), torch.tensor(rets)

    def update(self, obs, acts, old, rets):
        for _ in range(self.epochs):
            for idx in torch.randperm(len(obs)).split(self.minibatch):
                value = self.net.v(obs[idx]).squeeze(-1)
                adv = rets[idx] - value.detach()
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                logp = self.net.dist(obs[idx]).log_prob(acts[idx]).sum(-1)
                ratio = (logp - old[idx]).exp()
                policy = -torch.min(ratio * adv, ratio.clamp(1 - self.clip, 1 + self.clip) * adv).mean()
                loss = policy + 0.5 * (value - rets[idx]).pow(2).mean()
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                self.opt.step()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(3)
    agent = PPO(Cart(5))
    for iteration in range(10):
        data = agent.collect()
        print(iteration, len(data[0]), agent.update(*data))
    print("FINITE" if all(torch.isfinite(p).all() for p in agent.net.parameters()) else "POISONED")
