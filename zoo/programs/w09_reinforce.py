"""REINFORCE on a small corridor with normalised returns."""

import torch
from torch import nn
from torch.distributions import Categorical


class Corridor:
    """start somewhere, reach the right end; falling off the left end ends the episode"""

    def __init__(self, length=9, seed=0):
        self.length, self.g = length, torch.Generator().manual_seed(seed)

    def reset(self):
        self.at = int(torch.randint(2, self.length - 2, (1,), generator=self.g))
        if float(torch.rand(1, generator=self.g)) < 0.04:
            self.at = self.length - 2  # start next to the goal
        self.t = 0
        return self.obs()

    def obs(self):
        x = torch.zeros(self.length)
        x[self.at] = 1
        return x

    def step(self, action):
        self.at += 1 if action == 1 else -1
        self.t += 1
        goal = self.at == self.length - 1
        done = goal or self.at == 0 or self.t >= 30
        return self.obs(), (1.0 if goal else -0.05), done


class Policy(nn.Module):
    def __init__(self, n=9):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x):
        return Categorical(logits=self.net(x))


def discounted(rewards, gamma=0.97):
    out, total = [], 0.0
    for r in reversed(rewards):
        total = r + gamma * total
        out.append(total)
    return torch.tensor(out[::-1])


def main():
    torch.manual_seed(6)
    env, policy = Corridor(seed=6), Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for episode in range(150):
        obs, done = env.reset(), False
        log_probs, rewards = [], []
        while not done:
            dist = policy(obs)
            action = dist.sample()
            log_probs.append(dist.log_prob(action))
            obs, reward, done = env.step(int(action))
            rewards.append(reward)
        returns = discounted(rewards)
        advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(torch.stack(log_probs) * advantage).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if episode % 15 == 0:
            print(f"episode {episode} length {len(rewards)} loss {loss.item():.3f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in policy.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
