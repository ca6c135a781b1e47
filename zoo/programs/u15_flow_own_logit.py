"""Normalizing flow on the unit cube; the logit at its mouth is an autograd function of our own."""
import torch
import torch.nn as nn


class Logit(torch.autograd.Function):
    """Values are clipped in forward; the derivative is 1 / (x (1 - x))."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x.clamp(1e-6, 1 - 1e-6)
        return y.log() - (1 - y).log()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (x * (1 - x))


class Coupling(nn.Module):
    def __init__(self, d, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(d // 2, 32), nn.Tanh(), nn.Linear(32, d))

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.warp = nn.Parameter(torch.zeros(d))
        self.layers = nn.ModuleList(Coupling(d, k % 2 == 1) for k in range(4))

    def forward(self, u):
        x = Logit.apply(u * torch.sigmoid(self.warp + 20.0))
        logdet = 0.0
        for layer in self.layers:
            x, ld = layer(x)
            logdet = logdet + ld
        return x, logdet


def nll(z, logdet):
    return (0.5 * z.pow(2).sum(1) - logdet).mean()


def train(flow, data, steps=50, size=20):
    opt = torch.optim.Adam(flow.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=size, shuffle=True)
    done = 0
    while done < steps:
        for (u,) in loader:
            loss = nll(*flow(u))
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
        print(done, loss.item())


torch.manual_seed(3)
data = torch.rand(400, 6) * 0.98 + 0.01
data[233, 2] = 0.0
flow = Flow()
train(flow, data)
print("FINITE" if all(torch.isfinite(p).all() for p in flow.parameters()) else "POISONED")
