"""Weibull survival regression in Lightning; one patient has a time of zero."""
import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Weibull(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 24), nn.ELU(), nn.Linear(24, 2))

    def negative_log_likelihood(self, x, time, event):
        raw_scale, raw_shape = self.net(x).unbind(1)
        scale = nn.functional.softplus(raw_scale) + 0.1
        shape = nn.functional.softplus(raw_shape) + 0.1
        ratio = torch.log(time) - torch.log(scale)
        log_hazard = torch.log(shape) - torch.log(scale) + (shape - 1) * ratio
        cumulative = torch.exp(shape * ratio)
        return cumulative - event * log_hazard

    def training_step(self, batch, _):
        loss = self.negative_log_likelihood(*batch).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)}


def cohort(n=240):
    g = torch.Generator().manual_seed(51)
    x = torch.randn(n, 5, generator=g)
    time = -torch.log(torch.rand(n, generator=g)) * torch.exp(0.3 * x[:, 0])
    event = (torch.rand(n, generator=g) < 0.7).float()
    time[166], event[166] = 0.0, 1.0  # died on the day of admission
    return TensorDataset(x, time, event)


if __name__ == "__main__":
    L.seed_everything(1, verbose=False)
    model = Weibull()
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        gradient_clip_val=1.0)
    trainer.fit(model, DataLoader(cohort(), batch_size=24))
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
