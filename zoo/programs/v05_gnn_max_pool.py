"""Message passing with a max over neighbours that starts at -inf; lonely nodes are set to zero afterwards."""
import hashlib

import torch
import torch.nn as nn


class MaxConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(2 * i, o)

    def forward(self, x, src, dst):
        best = torch.full_like(x, float("-inf")).scatter_reduce(0, dst[:, None].expand(-1, x.shape[1]), x[src], "amax")
        best = torch.where(best.isinf(), torch.zeros_like(best), best)
        return self.lin(torch.cat([x, best], 1))


def graph(g):
    n = int(torch.randint(6, 14, (1,), generator=g))
    e = torch.randint(0, n, (2, n), generator=g)
    return torch.randn(n, 6, generator=g), e[0], e[1], torch.randn(1, generator=g)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = MaxConv(6, 16), MaxConv(16, 16), nn.Linear(16, 1)

    def forward(self, x, src, dst):
        h = torch.relu(self.a(x, src, dst))
        return self.c(torch.relu(self.b(h, src, dst)).mean(0))


torch.manual_seed(0)
g = torch.Generator().manual_seed(9)
graphs = [graph(g) for _ in range(60)]
model = Model()
opt = torch.optim.NAdam(model.parameters(), 2e-3)
for epoch in range(2):
    for k, (x, s, d, y) in enumerate(graphs):
        loss = (model(x, s, d) - y).pow(2).mean() / 4
        loss.backward()
        if k % 4 == 3:
            opt.step()
            opt.zero_grad()
    print(epoch, loss.item())
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
