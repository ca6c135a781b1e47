"""Runs a notebook's cells in order, the way nbconvert does."""
import linecache

CELLS = [
    """import torch, math
import torch.nn as nn
torch.manual_seed(0)
K = 4""",
    """g = torch.Generator().manual_seed(14)
x = torch.rand(240, 1, generator=g) * 2 - 1
y = torch.sin(5 * x) * torch.sign(torch.rand(240, 1, generator=g) - 0.5) + 0.05 * torch.randn(240, 1, generator=g)
y[153] = 60.0   # typo in the sheet""",
    """class MDN(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Sequential(nn.Linear(1, 32), nn.Tanh())
        self.pi, self.mu, self.s = nn.Linear(32, K), nn.Linear(32, K), nn.Linear(32, K)

    def forward(self, x):
        h = self.h(x)
        return self.pi(h).softmax(-1), self.mu(h), nn.functional.softplus(self.s(h)) + 1e-3""",
    """def nll(pi, mu, sigma, y):
    density = torch.exp(-0.5 * ((y - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    mixture = (pi * density).sum(-1)
    return -torch.log(mixture).mean()""",
    """model = MDN()
opt = torch.optim.Adam(model.parameters(), 5e-3)
history = []
for epoch in range(2):
    for i in range(0, len(x), 12):
        xb, yb = x[i:i + 12], y[i:i + 12]
        opt.zero_grad()
        loss = nll(*model(xb), yb)
        loss.backward()
        opt.step()
        history.append(loss.item())
    print(epoch, sum(history[-20:]) / 20)""",
    """print("FINITE" if all(bool(p.isfinite().all()) for p in model.state_dict().values()) else "POISONED")""",
]


def run_cells(cells):
    namespace = {"__name__": "__main__"}
    for number, source in enumerate(cells, start=1):
        name = f"<cell-{number}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        print(f"In [{number}]")
        exec(compile(source, name, "exec"), namespace)
    return namespace


if __name__ == "__main__":
    run_cells(CELLS)
