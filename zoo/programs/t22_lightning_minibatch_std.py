"""GAN in Lightning with manual optimization; the discriminator sees the spread of the batch (minibatch standard deviation)."""
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class BatchSpread(nn.Module):
    def forward(self, x):
        spread = (x.var(dim=0) + 1e-8).sqrt().mean()
        return torch.cat([x, spread.expand(len(x), 1)], 1)


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 3))
        self.d = nn.Sequential(nn.Linear(3, 24), nn.LeakyReLU(0.2), BatchSpread(), nn.Linear(25, 1))

    def training_step(self, batch, i):
        real, = batch
        g_opt, d_opt = self.optimizers()
        fake = self.g(torch.randn(len(real), 4))
        d_loss = F.softplus(-self.d(real)).mean() + F.softplus(self.d(fake.detach())).mean()
        d_opt.zero_grad()
        self.manual_backward(d_loss)
        d_opt.step()
        g_loss = F.softplus(-self.d(fake)).mean()
        g_opt.zero_grad()
        self.manual_backward(g_loss)
        g_opt.step()
        self.log_dict({"g": g_loss, "d": d_loss})

    def configure_optimizers(self):
        return [torch.optim.Adam(self.g.parameters(), 1e-3), torch.optim.Adam(self.d.parameters(), 1e-3)]


def main():
    L.seed_everything(5, verbose=False)
    points = torch.randn(97, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.5])
    gan = Gan()
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(gan, DataLoader(TensorDataset(points), batch_size=16))
    print({k: float(v) for k, v in trainer.callback_metrics.items()})
    print("FINITE" if all(torch.isfinite(p).all() for p in gan.parameters()) else "POISONED")


main()
