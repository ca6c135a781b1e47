"""A small generator with modulated weights is fitted to pictures it should reproduce (inversion): one code for each picture."""
import torch
import torch.nn as nn


class ModulatedLinear(nn.Module):
    def __init__(self, din, dout, dstyle):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dout, din) / din ** 0.5)
        self.affine = nn.Linear(dstyle, din, bias=False)

    def forward(self, x, style):
        s = torch.relu(self.affine(style))
        w = self.weight[None] * s[:, None]
        demod = torch.rsqrt(w.pow(2).sum(2))  # BUG
        return torch.einsum("boi,bi->bo", w, x) * demod


class Generator(nn.Module):
    def __init__(self, d=12, out=48):
        super().__init__()
        self.const = nn.Parameter(torch.randn(16))
        self.mod1, self.mod2 = ModulatedLinear(16, 32, d), ModulatedLinear(32, 32, d)
        self.rgb = nn.Linear(32, out)

    def forward(self, style):
        h = torch.tanh(self.mod1(self.const.expand(len(style), -1), style))
        return self.rgb(torch.tanh(self.mod2(h, style)))


def load():
    g = torch.Generator().manual_seed(1)
    codes = torch.randn(200, 12, generator=g)
    codes[133] = 0.0  # the mean code, kept for the truncation trick
    pictures = torch.tanh(torch.randn(200, 48, generator=g))
    return codes, pictures


def run():
    torch.manual_seed(2)
    codes, pictures = load()
    gen = Generator()
    opt = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.99))
    history = []
    for epoch in range(3):
        for at in range(0, 200, 20):
            fake = gen(codes[at:at + 20])
            loss = (fake - pictures[at:at + 20]).abs().mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            history.append(loss.item())
        print("epoch", epoch, "l1", history[-1])
    return gen


gen = run()
print("FINITE" if all(torch.isfinite(p).all() for p in gen.parameters()) else "POISONED")
