"""WGAN for tabular rows: two optimizers, gradient penalty at the real rows."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

Z, D, BATCH, N_CRITIC = 6, 5, 16, 2


def real_rows(n=256):
    g = torch.Generator().manual_seed(31)
    x = torch.randn(n, 2, generator=g) @ torch.randn(2, D, generator=g) + 0.1 * torch.randn(n, D, generator=g)
    x[200] = torch.tensor([4.0e4, -2.0e4, 9.0e4, 1.0e4, -7.0e4])  # cents instead of dollars
    return x


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(D, 24)
        self.outer = nn.Linear(24, 1)

    def forward(self, x):
        return self.outer(nn.functional.hardtanh(self.inner(x), -2, 2)).squeeze(1)


def make_generator():
    return nn.Sequential(nn.Linear(Z, 32), nn.LeakyReLU(0.2), nn.Linear(32, D))


def gradient_penalty(critic, rows):
    rows = rows.detach().requires_grad_(True)
    score = critic(rows)
    (grad,) = torch.autograd.grad(score.sum(), rows, create_graph=True)
    length = grad.pow(2).sum(dim=1).sqrt()
    return (length - 1).pow(2).mean()


def critic_step(critic, gen, opt_c, real):
    with torch.no_grad():
        fake = gen(torch.randn(len(real), Z))
    opt_c.zero_grad()
    loss = critic(fake).mean() - critic(real).mean() + 1.0 * gradient_penalty(critic, real)
    loss.backward()
    opt_c.step()
    return loss.item()


def generator_step(critic, gen, opt_g, n):
    opt_g.zero_grad()
    loss = -critic(gen(torch.randn(n, Z))).mean()
    loss.backward()
    opt_g.step()
    return loss.item()


def main():
    torch.manual_seed(13)
    loader = DataLoader(TensorDataset(real_rows()), BATCH, shuffle=False, drop_last=True)
    critic, gen = Critic(), make_generator()
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.9))
    for epoch in range(2):
        for i, (real,) in enumerate(loader):
            c = critic_step(critic, gen, opt_c, real)
            if (i + 1) % N_CRITIC == 0:
                l = generator_step(critic, gen, opt_g, len(real))
                print(f"{epoch}.{i:02d} critic {c:.3f} generator {l:.3f}")
    state = {**critic.state_dict(), **{f'g.{k}': v for k, v in gen.state_dict().items()}}
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
