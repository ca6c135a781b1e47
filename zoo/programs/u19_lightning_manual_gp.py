"""Critic and generator in Lightning with manual optimization; the gradient penalty's norm is a square root written out."""
import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class WGAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.gen = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 6))
        self.critic = nn.Sequential(nn.Linear(6, 10), nn.ReLU6(), nn.Linear(10, 1))

    def penalty(self, real):
        real = real.clone().requires_grad_(True)
        out = self.critic(real).sum()
        (g,) = torch.autograd.grad(out, real, create_graph=True)
        length = torch.sqrt(g.pow(2).sum(1))
        return (length - 1).pow(2).mean()

    def training_step(self, batch, _):
        (real,) = batch
        opt_g, opt_c = self.optimizers()
        z = torch.randn(len(real), 4)
        c_loss = self.critic(self.gen(z).detach()).mean() - self.critic(real).mean() + 10 * self.penalty(real)
        opt_c.zero_grad()
        self.manual_backward(c_loss)
        opt_c.step()
        g_loss = -self.critic(self.gen(z)).mean()
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.log_dict({"c": c_loss, "g": g_loss})

    def configure_optimizers(self):
        return torch.optim.Adam(self.gen.parameters(), 1e-3), torch.optim.Adam(self.critic.parameters(), 1e-3)


def main():
    L.seed_everything(1, verbose=False)
    model = WGAN()
    g = torch.Generator().manual_seed(30)
    x = torch.randn(320, 6, generator=g) + 1.0
    x[174] *= 5000  # millimetres among metres
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(TensorDataset(x), batch_size=20))
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


main()
