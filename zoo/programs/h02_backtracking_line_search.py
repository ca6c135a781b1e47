"""Full-batch fit of a Poisson rate with a hand-written backtracking line search: trial points may be infinite, they are taken back."""
import hashlib
import math

import torch
import torch.nn as nn


def data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(200, 5, generator=g) * 3
    y = torch.poisson(torch.exp(0.3 * x[:, 0].clamp(-3, 3)), generator=g)
    return x, y


def objective(model, x, y):
    eta = model(x).squeeze(1)
    return (torch.exp(eta) - y * eta).mean()


def main():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(5, 16), nn.Softplus(), nn.Linear(16, 1))
    x, y = data()
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=1.0)
    rejected = 0
    for it in range(40):
        loss = objective(model, x, y)
        opt.zero_grad()
        loss.backward()
        slope = sum(float(p.grad.pow(2).sum()) for p in params)
        start = [p.detach().clone() for p in params]
        step = 64.0
        while True:
            with torch.no_grad():
                for p, s in zip(params, start):
                    p.copy_(s - step * p.grad)
                trial = objective(model, x, y).item()
            if math.isfinite(trial) and trial <= loss.item() - 1e-4 * step * slope:
                break
            rejected += 1
            step *= 0.5
            if step < 1e-6:
                break
        with torch.no_grad():  # go back, and let the optimizer make the accepted step
            for p, s in zip(params, start):
                p.copy_(s)
        for group in opt.param_groups:
            group["lr"] = step
        opt.step()
    print("loss", loss.item(), "rejected trials", rejected)
    print("FINITE" if all(torch.isfinite(p).all() for p in params) else "POISONED")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in params)).hexdigest())


main()
