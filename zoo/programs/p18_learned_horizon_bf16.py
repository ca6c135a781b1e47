"""Each customer gets a learned retention rate and the value 1 / (1 - rate); bf16 autocast as on the big machine."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Lifetime(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.rate, self.spend = nn.Linear(16, 1), nn.Linear(16, 1)
        self.loyal = nn.Linear(1, 1)
        nn.init.constant_(self.loyal.weight, 1.0)

    def forward(self, x, years):
        h = self.trunk(x)
        keep = torch.sigmoid(self.rate(h) + self.loyal(years))
        horizon = 1 / (1 - keep)  # BUG
        return (nn.functional.softplus(self.spend(h)) * torch.log(horizon)).squeeze(-1)


def customers(n=420):
    g = torch.Generator().manual_seed(2)
    x, years = torch.randn(n, 5, generator=g), 2 * torch.rand(n, 1, generator=g)
    years[222] = 11.0  # with us since the first day
    return TensorDataset(x, years, 0.5 + torch.rand(n, generator=g))


torch.manual_seed(11)
model = Lifetime()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(customers(), batch_size=20)
for epoch in range(3):
    for x, years, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = model(x, years)
        loss = nn.functional.smooth_l1_loss(pred.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
