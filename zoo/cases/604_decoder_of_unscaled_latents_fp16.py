"""The decoder of a latent autoencoder under fp16 autocast: one latent was cached before it was multiplied by the scaling factor, the
convolution of the second up block leaves the fp16 range and the group norm behind it turns inf into NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="604_decoder_of_unscaled_latents_fp16", source="https://github.com/huggingface/diffusers/issues/7188",
             symptom="nan_loss", phase="forward", cause="fp16_overflow", op="convolution", op_also=["mkldnn_convolution", "conv2d", "_convolution"], module="up.1.conv", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[0], fixes_that_work=["fp32", "bf16", "scale_down", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"scale_down"}


class Up(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3, padding=1)
        self.down = 1.0

    def forward(self, x):
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return F.silu(self.conv(x * self.down))  # <-- origin


class Decoder(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.conv_in = nn.Conv2d(4, c, 1)
        self.up = nn.ModuleList([Up(c), Up(c)])
        self.norm_out = nn.GroupNorm(2, c)
        self.conv_out = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, z):
        h = self.conv_in(z)
        for up in self.up:
            h = up(h)
        return self.conv_out(F.silu(self.norm_out(h)))


def loss_fn(dec, batch):
    z, img = batch["latent"], batch["image"]
    return F.l1_loss(dec(z).float(), img)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dec, g = Decoder(), torch.Generator().manual_seed(9)
    with torch.no_grad():
        for up in dec.up:
            up.conv.weight.mul_(30.0)  # trained weights are larger than fresh ones
    if fix == "scale_down":
        dec.up[1].down = 1.0 / 256
    data = [dict(latent=torch.randn(3, 4, 3, 3, generator=g), image=torch.rand(3, 3, 12, 12, generator=g)) for _ in range(9)]
    data[5]["latent"][0] /= 0.0018215
    return Case(dec, loss_fn, data, torch.optim.AdamW(dec.parameters(), lr=1e-4), autocast=torch.float16)
