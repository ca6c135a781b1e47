"""A satellite tile carries the raster's no-data value -3.4028235e38: finite, so isfinite checks on the data pass, but the
first convolution overflows."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="229_nodata_pixels_in_raster", source="https://github.com/NRCan/geo-deep-learning/issues/68",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, op_also=["convolution", "native_group_norm", "mkldnn_convolution"], module=None, module_also=["stem.conv", "stem.gn"],
             line_marker=None, input_key="tile", finite_but_huge=True, first_bad_step=5, bad_rows=[0, 2], fixes_that_work=["mask_nodata", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"mask_nodata"}
NODATA = -3.4028234663852886e38


class Segmenter(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem = nn.Sequential()
        s.stem.add_module("conv", nn.Conv2d(4, 8, 3, padding=1))
        s.stem.add_module("gn", nn.GroupNorm(2, 8))
        s.head = nn.Conv2d(8, 3, 1)

    def forward(s, x):
        return s.head(F.silu(s.stem(x)))


def loss_fn(m, b):
    return F.cross_entropy(m(b["tile"]), b["cover"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Segmenter(), torch.Generator().manual_seed(8)
    data = [dict(tile=torch.rand(4, 4, 8, 8, generator=g), cover=torch.randint(0, 3, (4, 8, 8), generator=g)) for _ in range(9)]
    data[5]["tile"][0, :, :3, :2] = NODATA        # the swath's edge
    data[5]["tile"][2, :, 5:, 5:] = NODATA
    if fix:
        for b in data:
            b["tile"] = torch.where(b["tile"] < -1e30, torch.zeros(()), b["tile"])
    return Case(m, loss_fn, data, B.adam(m))
