"""A half precision model with a loss scale of our own that never changes."""
import torch
import torch.nn as nn

SCALE = 65536.0


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 48), nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x))))).squeeze(1)


def unscale(params):
    for p in params:
        if p.grad is not None:
            p.grad.div_(SCALE)


def train():
    torch.manual_seed(10)
    model = Regressor().half()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    g = torch.Generator().manual_seed(5)
    x = torch.randn(320, 12, generator=g)
    y = x[:, 0] * 0.5
    y[222] = 900.0
    data = torch.utils.data.TensorDataset(x.half(), y.half())
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(5))
    for epoch in range(2):
        for xb, yb in loader:
            error = (model(xb) - yb).float()
            loss = nn.functional.huber_loss(error, torch.zeros_like(error), delta=50.0)
            opt.zero_grad()
            (loss * SCALE).backward()
            unscale(model.parameters())
            opt.step()
        print(epoch, loss.item())
    return model


m = train()
print("FINITE" if all(torch.isfinite(p).all() for p in m.parameters()) else "POISONED")
