"""DDPM on 1-d signals with a learned variance between beta and the posterior variance."""
import torch
import torch.nn as nn

STEPS = 50


class Denoiser(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.time = nn.Embedding(STEPS, 16)
        self.net = nn.Sequential(nn.Linear(d + 16, 64), nn.SiLU(), nn.Linear(64, 2 * d))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1)).chunk(2, 1)


class Diffusion:
    def __init__(self):
        self.betas = torch.linspace(1e-3, 0.1, STEPS)
        self.alphas = 1 - self.betas
        self.bar = self.alphas.cumprod(0)
        self.bar_prev = torch.cat([torch.ones(1), self.bar[:-1]])
        self.post_var = self.betas * (1 - self.bar_prev) / (1 - self.bar)

    def losses(self, model, x0, t, noise):
        ab = self.bar[t][:, None]
        xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
        eps, v = model(xt, t)
        simple = (eps - noise).pow(2).mean()
        low = torch.log(self.post_var[t])[:, None]
        high = torch.log(self.betas[t])[:, None]
        frac = torch.sigmoid(v)
        log_var = frac * high + (1 - frac) * low
        vlb = 0.5 * (log_var - low + torch.exp(low - log_var) - 1)
        return simple + 0.01 * vlb.mean()


def main():
    torch.manual_seed(16)
    g = torch.Generator().manual_seed(34)
    data = torch.sin(torch.linspace(0, 6, 16) + torch.rand(256, 1, generator=g) * 6)
    t_all = torch.randint(1, STEPS, (40, 32), generator=g)
    t_all[9, 20] = 0
    t_all[31, 4] = 0
    model, diff = Denoiser(), Diffusion()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    ema = {k: v.clone() for k, v in model.state_dict().items()}
    for it in range(40):
        k = (it * 32) % 256
        x0 = data[k:k + 32]
        loss = diff.losses(model, x0, t_all[it], torch.randn(x0.shape, generator=g))
        opt.zero_grad()
        loss.backward()
        opt.step()
        for k, v in model.state_dict().items():
            ema[k].lerp_(v, 0.05)
        if it % 8 == 0:
            print(it, loss.item())
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


if __name__ == "__main__":
    main()
