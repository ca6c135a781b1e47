"""Pure half precision with fp32 master weights and a fixed loss scale."""

import torch
from torch import nn

SCALE = 2.0 ** 11


def build():
    return nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))


def stream(n=120, size=8):
    g = torch.Generator().manual_seed(3)
    w = torch.randn(16, generator=g) / 4
    for i in range(n):
        x = torch.randn(size, 16, generator=g)
        y = x @ w + 0.05 * torch.randn(size, generator=g)
        if i == 74:
            y[3] += 900.0  # one sensor glitch
        yield x, y


def main():
    torch.manual_seed(0)
    master = build()
    model = build().half()
    model.load_state_dict(master.state_dict())
    optimizer = torch.optim.SGD(master.parameters(), lr=0.02, momentum=0.9)
    for step, (x, y) in enumerate(stream()):
        prediction = model(x.half()).squeeze(-1)
        loss = (prediction.float() - y).pow(2).mean()
        model.zero_grad()
        (loss * SCALE).backward()
        for m, p in zip(master.parameters(), model.parameters()):
            m.grad = p.grad.float() / SCALE
        optimizer.step()
        with torch.no_grad():
            for m, p in zip(master.parameters(), model.parameters()):
                p.copy_(m)
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.5f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in master.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
