"""DQN with prioritized replay: hard target copies, and rewards that grow a hundredfold when the second stage of the game begins."""
import copy
import hashlib

import torch
import torch.nn as nn


class Replay:
    def __init__(self, size=400):
        self.rows, self.size = [], size

    def add(self, row):
        self.rows = (self.rows + [[row, float("inf")]])[-self.size:]  # new rows have infinite priority: first drawn

    def draw(self, n, g):
        pr = torch.tensor([p for _, p in self.rows])
        key = torch.where(torch.isinf(pr), 1e6 + torch.rand(len(pr), generator=g), pr * torch.rand(len(pr), generator=g))
        idx = key.topk(min(n, len(pr))).indices.tolist()
        return idx, [torch.stack(c) for c in zip(*(self.rows[k][0] for k in idx))]

    def update(self, idx, err):
        for k, e in zip(idx, err.tolist()):
            self.rows[k][1] = e


def main():
    torch.manual_seed(9)
    g = torch.Generator().manual_seed(10)
    q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    target = copy.deepcopy(q)
    opt = torch.optim.Adam(q.parameters(), lr=1e-3)
    replay, state = Replay(), torch.randn(4, generator=g)
    for step in range(160):
        with torch.no_grad():
            action = q(state).argmax()
        reward = state[action] * (100.0 if step >= 90 else 1.0)
        nxt = torch.randn(4, generator=g)
        replay.add((state, action, reward, nxt))
        state = nxt
        if step < 16:
            continue
        idx, (s, a, r, s2) = replay.draw(16, g)
        with torch.no_grad():
            goal = r + 0.9 * target(s2).max(1).values
        err = q(s).gather(1, a[:, None]).squeeze(1) - goal
        loss = err.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        replay.update(idx, err.detach().abs())
        if step % 25 == 0:
            target.load_state_dict(q.state_dict())
            print(step, loss.item())
    print("FINITE" if all(torch.isfinite(p).all() for p in q.parameters()) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in q.parameters())).hexdigest())


main()
