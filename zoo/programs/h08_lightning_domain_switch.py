"""Lightning: pretraining on synthetic data, then the data module switches to real data on another scale; cyclic learning rate."""
import hashlib
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Data(L.LightningDataModule):
    def train_dataloader(self):
        real = self.trainer.current_epoch >= 2
        g = torch.Generator().manual_seed(100 + real)
        x = torch.randn(160, 6, generator=g) * (12.0 if real else 1.0)
        y = x[:, :1] * (4.0 if real else 1.0) + (50.0 if real else 0.0)
        return DataLoader(TensorDataset(x, y), batch_size=8 if real else 16)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, i):
        x, y = batch
        return nn.functional.mse_loss(self.f(x), y)

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9)
        sched = torch.optim.lr_scheduler.CyclicLR(opt, 1e-4, 5e-3, step_size_up=10)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


L.seed_everything(4, verbose=False)
net = Net()
L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
          reload_dataloaders_every_n_epochs=1, gradient_clip_val=20.0).fit(net, datamodule=Data())
print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
