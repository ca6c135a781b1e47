"""MRI reconstruction from complex k-space: the imaginary part of one sample is NaN in one scan line."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="619_kspace_with_a_broken_coil", source="common report: corrupted raw scan in the training set", symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None,
             line_marker=None, input_key="kspace", first_bad_step=7, bad_rows=[2], fixes_that_work=["skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


class Unrolled(nn.Module):
    def __init__(self, steps=2):
        super().__init__()
        self.denoise = nn.ModuleList(nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1)) for _ in range(steps))
        self.step = nn.Parameter(torch.full((steps,), 0.5))

    def forward(self, kspace, sampled):
        img = torch.fft.ifft2(kspace, norm="ortho")
        for eta, net in zip(self.step, self.denoise):
            k = torch.fft.fft2(img, norm="ortho")
            img = img - eta * torch.fft.ifft2(sampled * (k - kspace), norm="ortho")
            z = net(torch.view_as_real(img).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()
            img = img + 0.1 * torch.view_as_complex(z)
        return img.abs()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Unrolled(), torch.Generator().manual_seed(11)
    data = []
    for _ in range(10):
        img = torch.rand(4, 8, 8, generator=g)
        sampled = (torch.rand(4, 1, 8, generator=g) > 0.4).float()
        data.append({"kspace": torch.fft.fft2(img.to(torch.complex64), norm="ortho") * sampled, "sampled": sampled, "image": img})
    k = torch.view_as_real(data[7]["kspace"])
    k[2, :, 3, 1] = float("nan")
    return Case(m, lambda m, b: F.l1_loss(m(b["kspace"], b["sampled"]), b["image"]), data, torch.optim.Adam(m.parameters(), lr=1e-3))
