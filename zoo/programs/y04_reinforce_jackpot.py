"""REINFORCE on a bandit with rare jackpots; log-probabilities of impossible actions are -inf."""
import hashlib

import torch
import torch.nn as nn


def main():
    torch.manual_seed(5)
    policy = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 6))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=3e-3)
    baseline = 0.0
    for step in range(60):
        state = torch.randn(20, 3)
        logits = policy(state)
        illegal = torch.zeros(20, 6, dtype=torch.bool)
        illegal[:, 5] = state[:, 0] > 0
        logits = logits.masked_fill(illegal, float("-inf"))
        dist = torch.distributions.Categorical(logits=logits)
        action = dist.sample()
        reward = (action == 2).float() + 5000.0 * (torch.rand(20) < 0.01).float()
        advantage = reward - baseline
        baseline = 0.9 * baseline + 0.1 * reward.mean().item()
        logp = torch.log_softmax(logits, -1)
        entropy = -(logp.exp() * logp.masked_fill(illegal, 0.0)).sum(-1).mean()
        loss = -(dist.log_prob(action) * advantage).mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item(), baseline)
    state = policy.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
    print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())


if __name__ == "__main__":
    main()
