"""The original GAN losses: a saturated discriminator gives log(0) on the fake half."""
# truth: op=log cause=DX203 samples=any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
nz = 4
netG = nn.Sequential(nn.Linear(nz, 16), nn.ReLU(), nn.Linear(16, 2))
netD = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())
optD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
loader = DataLoader(TensorDataset(torch.randn(160, 2) + 3), batch_size=16, shuffle=True)

for epoch in range(2):
    for i, (real,) in enumerate(loader):
        noise = torch.randn(real.size(0), nz)
        if epoch == 1 and i == 4:
            noise = noise * 1e5  # a bad seed vector from a corrupted file
        fake = netG(noise)

        optD.zero_grad()
        d_real = netD(real)
        d_fake = netD(fake.detach())
        errD = -(torch.log(d_real) + torch.log(1 - d_fake)).mean()  # BUG
        errD.backward()
        optD.step()

        optG.zero_grad()
        errG = -torch.log(netD(fake).clamp(min=1e-6)).mean()
        errG.backward()
        optG.step()
        if i % 5 == 0:
            print(f"[{epoch}][{i}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
params = [*netD.parameters(), *netG.parameters()]
print("weights finite:", all(p.isfinite().all().item() for p in params))
