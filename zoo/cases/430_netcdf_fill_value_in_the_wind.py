"""Weather fields: the NetCDF fill value 9.97e36 of two cells was never replaced; everything is finite in the batch and overflows when
the kinetic energy is taken."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="430_netcdf_fill_value_in_the_wind", source="common report: _FillValue 9.96921e+36 in training data", symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None,
             line_marker=None, input_key="wind", first_bad_step=4, bad_rows=[2], fixes_that_work=["drop_rows", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular")
        self.norm = nn.GroupNorm(2, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, fields):
        energy = 0.02 * fields["wind"].square().sum(1, keepdim=True)
        x = torch.cat([fields["wind"], fields["pressure"], energy], 1)
        return self.out(F.gelu(self.norm(self.mix(x))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Forecast(), torch.Generator().manual_seed(10), []
    for _ in range(7):
        f = dict(pressure=torch.randn(4, 1, 8, 8, generator=g), wind=5 * torch.randn(4, 2, 8, 8, generator=g))
        data.append((dict(f), f["pressure"].roll(1, -1)))
    data[4][0]["wind"][2, 0, 3, 3:5] = 9.96921e36
    return Case(m, lambda m, b: F.l1_loss(m(b[0]), b[1]), data, B.adam(m, 1e-3))
