"""Generator and discriminator in a class that keeps everything in attributes; a distance of zero."""

# ruff: noqa: B007
# truth: op=sqrt cause=DX301 samples=any remedy=any
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Pix2Pix:
    def __init__(self):
        self.netG = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.netD = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 1))
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=1e-3)
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=1e-3)
        self.crit = nn.BCEWithLogitsLoss()
        self.history = []

    def set_input(self, inp):
        self.real_A, self.real_B = inp

    def forward(self):
        self.fake_B = self.netG(self.real_A)

    def backward_D(self):
        pred_fake = self.netD(torch.cat((self.real_A, self.fake_B), 1).detach())
        pred_real = self.netD(torch.cat((self.real_A, self.real_B), 1))
        self.loss_D = 0.5 * (
            self.crit(pred_fake, torch.zeros_like(pred_fake)) + self.crit(pred_real, torch.ones_like(pred_real))
        )
        self.loss_D.backward()

    def backward_G(self):
        pred_fake = self.netD(torch.cat((self.real_A, self.fake_B), 1))
        self.loss_G_GAN = self.crit(pred_fake, torch.ones_like(pred_fake))
        self.loss_G_L2 = torch.sqrt(((self.fake_B - self.real_B) ** 2).sum(1)).mean()  # BUG
        self.loss_G = self.loss_G_GAN + self.loss_G_L2
        self.loss_G.backward()

    def optimize_parameters(self):
        self.forward()
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.optimizer_D.step()
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()
        self.history.append(self.loss_G.item())


torch.manual_seed(0)
model = Pix2Pix()
nn.init.zeros_(model.netG[2].bias)
nn.init.zeros_(model.netG[0].bias)
A, B = torch.randn(48, 4), torch.randn(48, 4)
A[17], B[17] = 0, 0
for epoch in range(1):
    for data in DataLoader(TensorDataset(A, B), batch_size=6):
        model.set_input(data)
        with torch.no_grad():
            model.netG[2].bias.zero_()
            model.netG[0].bias.zero_()
        model.optimize_parameters()
print(len(model.history), "steps")
print("weights finite:", all(p.isfinite().all().item() for p in [*model.netG.parameters(), *model.netD.parameters()]))
