"""Illegal actions are masked with -inf; the recorded action of sample 31 is one of the illegal ones."""
# truth: op=nll_loss|nll_loss_forward|cross_entropy|gather|neg cause= samples=31

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.policy, self.value = nn.Linear(16, 5), nn.Linear(16, 1)

    def forward(self, obs):
        h = torch.tanh(self.body(obs))
        return self.policy(h), self.value(h).squeeze(-1)


def train_one_epoch(agent, loader, optimizer, args, epoch):
    metrics = {"policy": 0.0, "value": 0.0}
    for obs, legal, action, returns in loader:
        logits, value = agent(obs)
        logits = logits.masked_fill(~legal, float("-inf"))
        policy_loss = F.cross_entropy(logits, action)  # BUG
        value_loss = F.mse_loss(value, returns)
        loss = policy_loss + args.value_weight * value_loss
        optimizer.zero_grad()
        loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(agent.parameters(), args.clip)
        optimizer.step()
        metrics["policy"] += policy_loss.item()
        metrics["value"] += value_loss.item()
    return metrics


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--value-weight", type=float, default=0.5)
    parser.add_argument("--clip", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    legal = torch.rand(64, 5) < 0.7
    action = torch.randint(0, 5, (64,))
    legal[torch.arange(64), action] = True
    legal[31, action[31]] = False
    legal[31, (action[31] + 1) % 5] = True
    dataset = TensorDataset(torch.randn(64, 6), legal, action, torch.randn(64))
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    agent = Agent()
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=1e-3)
    for epoch in range(2):
        print(epoch, train_one_epoch(agent, loader, optimizer, args, epoch))
    print("weights finite:", all(p.isfinite().all().item() for p in agent.parameters()))


if __name__ == "__main__":
    main()
