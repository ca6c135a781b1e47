"""Next-item scores from an LSTM that starts from a state remembered per user."""

import torch
from torch import nn

torch.use_deterministic_algorithms(True)  # reproducible runs
N_USERS, N_ITEMS, HIDDEN, T = 400, 50, 24, 8


class UserMemory(nn.Module):
    def __init__(self, users, hidden):
        super().__init__()
        self.register_buffer("state", torch.empty(users, hidden))

    @torch.no_grad()
    def fill(self, users, vectors):
        self.state[users] = vectors

    def forward(self, users):
        return self.state[users]


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(N_ITEMS, HIDDEN)
        self.memory = UserMemory(N_USERS, HIDDEN)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, N_ITEMS)

    def forward(self, users, history):
        h0 = self.memory(users).unsqueeze(0)
        y, _ = self.lstm(self.items(history), (h0, torch.zeros_like(h0)))
        return self.out(y)


def profiles():
    """users with at least one purchase before the cut-off"""
    g = torch.Generator().manual_seed(5)
    for user in range(N_USERS):
        purchases = torch.randint(0, 12, (1,), generator=g).item() + (user != 287)
        if user == 287:
            purchases = 0
        if purchases:
            yield user, torch.randn(HIDDEN, generator=g) * 0.1


def main():
    torch.manual_seed(0)
    model = Recommender()
    for user, vector in profiles():
        model.memory.fill(user, vector)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(8)
    seqs = (torch.randint(0, N_ITEMS, (N_USERS, 1), generator=g) + torch.arange(T + 1) * 3) % N_ITEMS
    for epoch in range(3):
        order = torch.randperm(N_USERS, generator=g)
        for k in range(0, N_USERS, 16):
            users = order[k:k + 16]
            logits = model(users, seqs[users, :-1])
            loss = nn.functional.cross_entropy(logits.reshape(-1, N_ITEMS), seqs[users, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print("epoch", epoch, "loss", round(loss.item(), 4))
    print("FINITE" if all(torch.isfinite(t).all() for t in {k: v for k, v in model.state_dict().items() if k != "memory.state"}.values()) else "POISONED")


main()
