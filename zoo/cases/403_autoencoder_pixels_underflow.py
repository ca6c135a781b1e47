"""A convolutional autoencoder under fp16 autocast without a loss scaler: the mean over all pixels and a small loss weight leave
gradients below the smallest fp16 number at the last convolution."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="403_autoencoder_pixels_underflow", source="https://pytorch.org/docs/stable/amp.html#gradient-scaling",
             symptom="silent", phase="backward", cause="fp16_underflow", op=None, module="decoder.2", module_also=["decoder", "decoder.0", "encoder.0", "encoder", "", None], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["fp32", "bf16", "loss_scale"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"loss_scale"}


class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        self.decoder = nn.Sequential(nn.Upsample(scale_factor=2), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Lit(nn.Module):
    """The shape of a Lightning module, without its trainer."""

    def __init__(self, net, weight):
        super().__init__()
        self.encoder, self.decoder, self.weight = net.encoder, net.decoder, weight

    def training_step(self, batch, batch_idx=0):
        x = batch["image"]
        recon = self.decoder(self.encoder(x))
        return self.weight * F.mse_loss(recon.float(), x)


def moved(log):
    # encoder and decoder must both get something: all gradients exactly zero is the failure
    return all(r.loss_ok and r.grad_ok for r in log) and all(r.grad_norm > 0 for r in log)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    lit = Lit(AE(), 1e-4)
    g = torch.Generator().manual_seed(4)
    data = [dict(image=torch.rand(4, 3, 32, 32, generator=g)) for _ in range(6)]
    case = Case(lit, lambda m, b: m.training_step(b), data, B.adam(lit, 1e-3), autocast=torch.float16, healthy=moved)
    if fix == "loss_scale":
        case.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    return case
