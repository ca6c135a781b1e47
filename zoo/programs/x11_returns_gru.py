"""Forecast next-day returns with a GRU; windows over many instruments, loaded by two workers."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Every item is one instrument's window of daily returns and the return of the day after."""

    def __init__(self, instruments=160, days=25):
        g = torch.Generator().manual_seed(6)
        prices = 50 * torch.exp(torch.cumsum(0.02 * torch.randn(instruments, days, generator=g), dim=1))
        prices[77, 11] = 0.0  # the feed had a hole
        self.returns = self.to_returns(prices)

    @staticmethod
    def to_returns(prices):
        change = prices[:, 1:] - prices[:, :-1]
        return 50 * change / prices[:, :-1]

    def __len__(self):
        return len(self.returns)

    def __getitem__(self, i):
        row = self.returns[i]
        return row[:-1].unsqueeze(-1), row[-1]


class Forecaster(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1]).squeeze(-1)


def main():
    torch.manual_seed(0)
    data = Windows()
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(9))
    model = Forecaster()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    huber = nn.HuberLoss()
    for epoch in range(2):
        model.train()
        losses = []
        for window, target in loader:
            prediction = model(window)
            loss = huber(prediction, target)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
