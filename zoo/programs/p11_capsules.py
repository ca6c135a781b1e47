"""Capsule network for tiny digits. Early versions of squash() divide by the length."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def squash(s, dim=-1):
    sq = (s ** 2).sum(dim, keepdim=True)
    length = sq ** 0.5
    return sq / (1 + sq) * s / length  # BUG


class Capsules(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 4, stride=2, bias=False)
        self.W = nn.Parameter(0.1 * torch.randn(1, 12, 5, 6, 12))

    def forward(self, x):
        u = squash(F.relu(self.conv(x)).reshape(len(x), 12, 12))
        u_hat = torch.einsum("bnd,xncod->bnco", u, self.W)
        b = torch.zeros(u_hat.shape[:3])
        for _ in range(2):
            c = b.softmax(2)
            v = squash((c[..., None] * u_hat).sum(1) + 1e-3)
            b = b + (u_hat * v[:, None]).sum(-1).detach()
        return (v ** 2).sum(-1)


def margin_loss(length, y):
    t = F.one_hot(y, 5).float()
    return (t * F.relu(0.9 - length) ** 2 + 0.5 * (1 - t) * F.relu(length - 0.1) ** 2).sum(1).mean()


def digits(n=160):
    g = torch.Generator().manual_seed(3)
    y = torch.randint(0, 5, (n,), generator=g)
    x = torch.rand(n, 1, 8, 8, generator=g) * 0.3
    for k in range(n):
        x[k, 0, y[k] + 1] = 1.0
    x[49] = 0.0  # a blank cell of the form
    return x, y


torch.manual_seed(10)
net = Capsules()
with torch.no_grad():
    net.conv.weight.abs_()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
x, y = digits()
order = torch.randperm(160, generator=torch.Generator().manual_seed(77))
for epoch in range(3):
    hits = 0
    for k in range(0, 160, 16):
        idx = order[k:k + 16]
        out = net(x[idx])
        loss = margin_loss(out, y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += (out.argmax(1) == y[idx]).sum().item()
    print(f"epoch {epoch} accuracy {hits / 160:.3f} loss {loss.item():.4f}")
print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")
