"""Policy gradient on a small board game: illegal moves get a logit of -inf; rewards are rare and large."""
import hashlib

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self, cells=9):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cells, 32), nn.Tanh(), nn.Linear(32, cells))

    def forward(self, board):
        logits = self.net(board)
        return logits.masked_fill(board != 0, float("-inf"))


def play(policy, g):
    board, logps, reward = torch.zeros(9), [], 0.0
    for turn in range(9):
        dist = Categorical(logits=policy(board))
        move = torch.multinomial(dist.probs.detach(), 1, generator=g)[0]
        logps.append(dist.log_prob(move))
        board = board.clone()
        board[move] = 1.0 if turn % 2 == 0 else -1.0
        if board[:3].sum() == 3:
            reward = 500.0  # rare
            break
    return torch.stack(logps), reward


torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
policy = Policy()
opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
baseline = 0.0
for episode in range(120):
    logps, reward = play(policy, g)
    loss = -(logps * (reward - baseline)).mean()
    baseline = 0.95 * baseline + 0.05 * reward
    opt.zero_grad()
    loss.backward()
    opt.step()
    if episode % 30 == 0:
        print(episode, loss.item(), baseline)
print("FINITE" if all(torch.isfinite(p).all() for p in policy.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in policy.parameters())).hexdigest())
