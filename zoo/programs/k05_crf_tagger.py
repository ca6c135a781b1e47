"""Linear-chain CRF with forbidden transitions (-inf) and an Inf best score."""
import hashlib
import torch
from torch import nn

TAGS = 4


class CRF(nn.Module):
    def __init__(self):
        super().__init__()
        self.emit = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, TAGS))
        self.trans = nn.Parameter(torch.zeros(TAGS, TAGS))
        forbidden = torch.zeros(TAGS, TAGS)
        forbidden[0, 2] = forbidden[3, 1] = float("-inf")
        self.register_buffer("forbidden", forbidden)

    def nll(self, x, y):
        e, t = self.emit(x), self.trans + self.forbidden
        alpha, gold = e[:, 0], e[:, 0].gather(1, y[:, :1]).squeeze(1)
        for k in range(1, x.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + t, 1) + e[:, k]
            gold = gold + t[y[:, k - 1], y[:, k]] + e[:, k].gather(1, y[:, k:k + 1]).squeeze(1)
        return (alpha.logsumexp(-1) - gold).mean()


def sample(n=12, length=7):
    y = torch.zeros(n, length, dtype=torch.long)
    y[:, 0] = torch.randint(0, TAGS, (n,))
    for k in range(1, length):
        nxt = torch.randint(0, TAGS, (n,))
        bad = ((y[:, k - 1] == 0) & (nxt == 2)) | ((y[:, k - 1] == 3) & (nxt == 1))
        y[:, k] = torch.where(bad, y[:, k - 1], nxt)
    x = torch.nn.functional.one_hot(y, 6).float() + 0.5 * torch.randn(n, length, 6)
    return x, y


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model, self.best = CRF(), float("inf")
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def fit(self, steps):
        for s in range(steps):
            loss = self.model.nll(*sample())
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if loss.item() < self.best:
                self.best = loss.item()
            if s % 20 == 0:
                print(f"step {s} nll {loss.item():.4f} best {self.best:.4f}")


trainer = Trainer()
trainer.fit(100)
print("FINITE" if not any(torch.isnan(t).any() for t in trainer.model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in trainer.model.state_dict().values())).hexdigest())
