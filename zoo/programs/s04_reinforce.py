"""REINFORCE with normalised returns on a bandit with walls; episodes come from a generator."""
import torch
import torch.nn as nn
from torch.distributions import Categorical


def episodes(policy, n, rng):
    """Yields (log_probs, rewards). Episode 23 starts in the terminal state's neighbour: all rewards alike."""
    for episode in range(n):
        state = torch.randn(4, generator=rng)
        logps, rewards = [], []
        for t in range(6):
            dist = Categorical(logits=policy(state))
            a = dist.sample()
            logps.append(dist.log_prob(a))
            r = 0.0 if episode == 23 else float(state[int(a)]) + 0.1 * float(torch.randn((), generator=rng))
            rewards.append(r)
            state = 0.7 * state + 0.3 * torch.randn(4, generator=rng)
        yield torch.stack(logps), torch.tensor(rewards)


def returns_of(rewards, gamma=1.0):
    out, running = [], 0.0
    for r in reversed(rewards.tolist()):
        running = r + gamma * running
        out.append(running)
    return torch.tensor(out[::-1])


def update(opt, logps, rewards):
    ret = returns_of(rewards)
    adv = (ret - ret.mean()) / ret.std()  # BUG
    loss = -(logps * adv).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    torch.manual_seed(5)
    rng = torch.Generator().manual_seed(6)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    scores = []
    try:
        for k, (logps, rewards) in enumerate(episodes(policy, 60, rng)):
            update(opt, logps, rewards)
            scores.append(float(rewards.sum()))
            if k % 20 == 19:
                print("episode", k + 1, "mean score", sum(scores[-20:]) / 20)
    except ValueError as error:
        print("the policy broke down:", str(error).splitlines()[0][:80])
    print("FINITE" if all(torch.isfinite(p).all() for p in policy.parameters()) else "POISONED")


main()
