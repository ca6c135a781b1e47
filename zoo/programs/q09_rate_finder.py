"""Looks for a learning rate first (the rate grows until the loss is four times the best), puts the weights back and trains with a tenth of it."""
import argparse
import copy
import hashlib

import torch
import torch.nn as nn

torch.set_num_threads(1)


def batch(g):
    x = torch.randn(32, 6, generator=g)
    return x, torch.tanh(x[:, :1] + x[:, 1:2] ** 2)


def find_rate(model, lo=1e-4, hi=100.0, steps=80):
    start = copy.deepcopy(model.state_dict())
    opt = torch.optim.SGD(model.parameters(), lr=lo)
    g, best, lr = torch.Generator().manual_seed(100), float("inf"), lo
    for k in range(steps):
        lr = lo * (hi / lo) ** (k / (steps - 1))
        opt.param_groups[0]["lr"] = lr
        x, y = batch(g)
        loss = nn.functional.mse_loss(model(x), y)
        best = min(best, loss.item())
        if loss.item() > 4 * best + 1.0:
            break
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"stopped at rate {lr:.3g} with loss {loss.item():.3g}")
    model.load_state_dict(start)
    return lr / 10


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    a = p.parse_args()
    torch.manual_seed(19)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 1))
    lr = find_rate(model)
    opt = torch.optim.SGD(model.parameters(), lr=min(lr, 0.1), momentum=0.5)
    g = torch.Generator().manual_seed(19)
    for s in range(a.steps):
        x, y = batch(g)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 50 == 49:
            print(s + 1, round(loss.item(), 4))
    print("FINITE" if all(torch.isfinite(q).all() for q in model.parameters()) else "POISONED")
    print(hashlib.sha256(b"".join(q.detach().numpy().tobytes() for q in model.parameters())).hexdigest())


main()
