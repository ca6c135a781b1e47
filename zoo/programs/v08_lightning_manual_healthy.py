"""Lightning, manual optimization: an autoencoder and a critic in turns, accumulation by hand, schedulers stepped at the end of an epoch."""
import hashlib
import logging

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Adversarial(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.auto = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, i):
        (x,) = batch
        oa, oc = self.optimizers()
        self.toggle_optimizer(oa)
        y = self.auto(x)
        self.manual_backward(((y - x).pow(2).mean() - 0.05 * self.critic(y).mean()) / 2)
        if i % 2 == 1:
            self.clip_gradients(oa, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            oa.step()
            oa.zero_grad()
        self.untoggle_optimizer(oa)
        if i % 3 == 0:
            self.toggle_optimizer(oc)
            loss = nn.functional.softplus(self.critic(y.detach())).mean() + nn.functional.softplus(-self.critic(x)).mean()
            oc.zero_grad()
            self.manual_backward(loss)
            oc.step()
            self.untoggle_optimizer(oc)

    def on_train_epoch_end(self):
        for s in self.lr_schedulers():
            s.step()

    def configure_optimizers(self):
        oa, oc = torch.optim.Adam(self.auto.parameters(), 1e-2), torch.optim.SGD(self.critic.parameters(), 0.1)
        return [oa, oc], [torch.optim.lr_scheduler.StepLR(oa, 1, 0.5), torch.optim.lr_scheduler.StepLR(oc, 1, 0.9)]


L.seed_everything(2, verbose=False)
model = Adversarial()
x = torch.randn(192, 8, generator=torch.Generator().manual_seed(4)) * 5
L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False).fit(
    model, DataLoader(TensorDataset(x), batch_size=16, shuffle=True))
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
