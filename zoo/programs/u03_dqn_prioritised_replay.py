"""DQN with a prioritised replay buffer kept in numpy; half of every batch is drawn uniformly."""
import numpy as np
import torch
import torch.nn as nn


class Replay:
    def __init__(self, capacity=512, alpha=0.6, beta=0.4):
        self.s = np.zeros((capacity, 4), np.float32)
        self.a = np.zeros(capacity, np.int64)
        self.r = np.zeros(capacity, np.float32)
        self.s2 = np.zeros((capacity, 4), np.float32)
        self.priority = np.zeros(capacity, np.float64)
        self.n, self.alpha, self.beta = 0, alpha, beta

    def add(self, s, a, r, s2, priority):
        i = self.n
        self.s[i], self.a[i], self.r[i], self.s2[i], self.priority[i] = s, a, r, s2, priority
        self.n += 1

    def sample(self, size, rng):
        p = self.priority[: self.n] ** self.alpha
        p = p / p.sum()
        half = rng.choice(self.n, size // 2, p=p)
        rest = rng.integers(0, self.n, size - size // 2)
        idx = np.concatenate([half, rest])
        w = (1.0 / (self.n * p[idx])) ** self.beta
        w = w / w.max()
        return idx, [torch.from_numpy(x[idx]) for x in (self.s, self.a, self.r, self.s2)], torch.from_numpy(w).float()


def fill(replay, rng, n):
    for _ in range(n):
        s = rng.normal(size=4).astype(np.float32)
        a = int(rng.integers(0, 3))
        s2 = (0.9 * s + 0.2 * (a - 1)).astype(np.float32)
        replay.add(s, a, -float((s2**2).sum()), s2, 1.0)


def main():
    np.seterr(all="ignore")
    torch.manual_seed(0)
    rng = np.random.default_rng(4)
    replay = Replay()
    fill(replay, rng, 200)
    q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    target = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=1e-3)
    for step in range(60):
        if step == 25:  # demonstrations are appended, nobody thought of a priority for them
            s = rng.normal(size=4).astype(np.float32)
            for _ in range(3):
                replay.add(s, 1, 0.0, s, 0.0)
        idx, (s, a, r, s2), w = replay.sample(32, rng)
        with torch.no_grad():
            y = r + 0.95 * target(s2).max(1).values
        td = y - q(s).gather(1, a[:, None]).squeeze(1)
        loss = (w * td.pow(2)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        replay.priority[idx] = td.detach().abs().numpy() + 1e-3
        if step % 10 == 0:
            target.load_state_dict(q.state_dict())
            print(step, loss.item())
    print("FINITE" if all(torch.isfinite(p).all() for p in q.parameters()) else "POISONED")


main()
