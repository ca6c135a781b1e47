"""Differentially private training with torch.func: per-sample gradients are normalised and summed."""
import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap

SIGMA, LOT = 0.05, 16


class Linearish(nn.Module):
    def __init__(self, d=10):
        super().__init__()
        self.hidden = nn.Linear(d, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x))).squeeze(-1)


def make_data(n=200):
    g = torch.Generator().manual_seed(99)
    x = torch.randn(n, 10, generator=g)
    y = torch.sign(x @ torch.randn(10, generator=g))
    y[124] = 0.0  # unlabelled
    return x, y


def main():
    torch.manual_seed(21)
    x, y = make_data()
    model = Linearish()
    params = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = torch.Generator().manual_seed(1)

    def sample_loss(p, xi, yi):
        score = functional_call(model, p, (xi.unsqueeze(0),)).squeeze(0)
        return nn.functional.softplus(-yi * score) * yi.abs()

    per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0))

    for epoch in range(2):
        for start in range(0, len(x), LOT):
            xb, yb = x[start : start + LOT], y[start : start + LOT]
            detached = {k: v.detach() for k, v in params.items()}
            grads = per_sample(detached, xb, yb)
            norms = torch.stack([v.flatten(1).square().sum(1) for v in grads.values()]).sum(0).sqrt()
            factor = 1.0 / norms
            for name, p in params.items():
                g = grads[name]
                scaled = g * factor.view(-1, *[1] * (g.dim() - 1))
                p.grad = scaled.sum(0) / len(xb) + SIGMA / len(xb) * torch.randn(p.shape, generator=noise)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            hits = (model(x).sign() == y).float().mean()
        print(f"epoch {epoch} accuracy {hits:.3f}")
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
