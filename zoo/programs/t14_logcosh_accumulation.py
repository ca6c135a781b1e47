"""Delivery-time regression with a log-cosh loss and gradient accumulation."""
import torch
import torch.nn as nn


class Deliveries:
    def __init__(self, n=384, seed=19):
        g = torch.Generator().manual_seed(seed)
        self.features = torch.randn(n, 7, generator=g)
        self.minutes = 30 + 8 * self.features[:, 0] + 2 * torch.randn(n, generator=g)
        self.minutes[310] = 212.0  # snow

    def batches(self, size):
        for k in range(0, len(self.minutes), size):
            yield {"features": self.features[k:k + size], "minutes": self.minutes[k:k + size]}


def log_cosh(pred, target):
    err = pred - target
    return torch.log(torch.cosh(err)).mean()


def train(accumulate=4, epochs=3):
    torch.manual_seed(23)
    model = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))
    nn.init.constant_(model[2].bias, 30.0)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    data = Deliveries()
    for epoch in range(epochs):
        opt.zero_grad()
        total = 0.0
        for k, batch in enumerate(data.batches(12)):
            loss = log_cosh(model(batch["features"]).squeeze(-1), batch["minutes"]) / accumulate
            loss.backward()
            total += loss.item()
            if (k + 1) % accumulate == 0:
                opt.step()
                opt.zero_grad()
        print("epoch", epoch, "loss", total)
    return model


if __name__ == "__main__":
    m = train()
    print("FINITE" if all(torch.isfinite(p).all() for p in m.parameters()) else "POISONED")
