"""Audio tagging on raw waveforms with Lightning; the spectrogram is part of the model."""
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Spectrogram(nn.Module):
    def __init__(self, n_fft=64):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, hop_length=32, window=self.window, return_complex=True)
        power = spec.real ** 2 + spec.imag ** 2
        return 10.0 * torch.log10(power)


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.front = Spectrogram()
        self.conv = nn.Conv1d(33, 16, 3, padding=1)
        self.out = nn.Linear(16, 3)

    def forward(self, wave):
        z = self.front(wave) / 20.0
        return self.out(torch.relu(self.conv(z)).mean(2))

    def training_step(self, batch, batch_idx):
        wave, tags = batch
        return nn.functional.binary_cross_entropy_with_logits(self(wave), tags)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 3)}


def clips(n=160):
    g = torch.Generator().manual_seed(21)
    t = torch.arange(512) / 512
    f = torch.randint(4, 60, (n, 1), generator=g)
    wave = torch.sin(2 * torch.pi * f * t) + 0.1 * torch.randn(n, 512, generator=g)
    wave[77] = 0.0  # muted microphone
    tags = torch.stack([(f[:, 0] < 20), (f[:, 0] > 40), (f[:, 0] % 2 == 0)], 1).float()
    return TensorDataset(wave, tags)


L.seed_everything(1, verbose=False)
model = Tagger()
trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(model, DataLoader(clips(), batch_size=16, shuffle=True))
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
