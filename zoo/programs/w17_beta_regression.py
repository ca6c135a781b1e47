"""Click-through rate as a proportion: Beta regression."""
import sys

import torch
from torch import nn
from torch.distributions import Beta
from torch.utils.data import DataLoader, TensorDataset


class BetaHead(nn.Module):
    def __init__(self, d=7):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 32), nn.ELU(), nn.Linear(32, 2))

    def forward(self, x):
        mean, precision = self.body(x).unbind(-1)
        mean = torch.sigmoid(mean)
        precision = nn.functional.softplus(precision) + 2.5
        return Beta(mean * precision, (1 - mean) * precision)


def simulate(n=1500):
    g = torch.Generator().manual_seed(77)
    x = torch.randn(n, 7, generator=g)
    m = torch.sigmoid(0.6 * x[:, 0] - 0.4 * x[:, 3])
    y = (m + 0.1 * torch.randn(n, generator=g)).clamp(0.01, 0.99)
    y[942] = 1.0  # one view, one click
    return x, y


def main(argv):
    torch.manual_seed(int(argv[1]) if len(argv) > 1 else 0)
    model = BetaHead()
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    loader = DataLoader(TensorDataset(*simulate()), batch_size=25, shuffle=True)
    for epoch in range(2):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            nll = -model(x).log_prob(y).mean()
            nll.backward()
            optimizer.step()
            total += nll.item()
        print(f"epoch {epoch}: nll {total / len(loader):.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main(sys.argv)
