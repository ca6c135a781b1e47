"""A GAN on small images with the original loss, log D written out; one image was never divided by 255."""
import torch
import torch.nn as nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return torch.sigmoid(self.net(x)).squeeze(1)


def d_loss_fn(d_real, d_fake):
    real_term = torch.log(d_real)
    fake_term = torch.log(1 - d_fake)
    return -(real_term.mean() + fake_term.mean())


def g_loss_fn(d_fake):
    return -torch.log(d_fake).mean()


class Trainer:
    def __init__(self, images):
        self.G, self.D = Generator(), Discriminator()
        self.og = torch.optim.Adam(self.G.parameters(), 2e-4, betas=(0.5, 0.999))
        self.od = torch.optim.Adam(self.D.parameters(), 2e-4, betas=(0.5, 0.999))
        self.loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images), batch_size=20)

    def epoch(self):
        for (real,) in self.loader:
            fake = self.G(torch.randn(len(real), 8))
            d_loss = d_loss_fn(self.D(real), self.D(fake.detach()))
            self.od.zero_grad()
            d_loss.backward()
            self.od.step()
            g_loss = g_loss_fn(self.D(fake))
            self.og.zero_grad()
            g_loss.backward()
            self.og.step()
        return d_loss.item(), g_loss.item()


g = torch.Generator().manual_seed(6)
images = torch.rand(300, 64, generator=g).pow(2)
images[171] = images[171] * 255 * 4
torch.manual_seed(16)
trainer = Trainer(images)
for e in range(2):
    print(e, *trainer.epoch())
weights = [*trainer.G.parameters(), *trainer.D.parameters()]
print("FINITE" if all(torch.isfinite(p).all() for p in weights) else "POISONED")
