"""A heteroscedastic regression head in half precision predicts sigma; the loss squares it. For one sample sigma is about 1e-4: its square is
below the smallest half and rounds to 0, and the squared error is divided by it."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="715_variance_of_a_sure_prediction_in_half", source="common report: Gaussian NLL inf in fp16 (variance underflows, eps is below the fp16 range)",
             symptom="inf_loss", phase="loss", cause="fp16_underflow", op="div", module=None, line_marker="# <-- origin", first_bad_step=5, bad_rows=[4],
             fixes_that_work=["fp32", "bf16", "clamp", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["upcast_module", "clip", "lr_down", "zero_nan_grads"])
FIXES = {"fp32", "bf16", "upcast_module", "clamp", "eps"}


class Gauss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mean, self.log_sigma = nn.Sequential(nn.Linear(7, 12), nn.Tanh()), nn.Linear(12, 1), nn.Linear(7, 1)

    def forward(self, x):
        return self.mean(self.body(x)).squeeze(-1), self.log_sigma(x).squeeze(-1)


def gaussian_nll(mean, log_sigma, y, fix):
    if fix == "upcast_module":
        mean, log_sigma, y = mean.float(), log_sigma.float(), y.float()
    var = log_sigma.exp().square()
    if fix == "clamp":
        var = var.clamp_min(2e-2)
    if fix == "eps":
        var = var + 2e-2
    err = (y - mean).square()
    return 0.5 * err / var + log_sigma  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    m, g = Gauss().to(dtype), torch.Generator().manual_seed(85)
    with torch.no_grad():
        m.log_sigma.weight[0, 0] = -0.5
    data = [(torch.randn(6, 7, generator=g), torch.randn(6, generator=g)) for _ in range(9)]
    data[5][0][4, 0] = 19.0

    def loss_fn(m, batch):
        x, y = (t.to(dtype) for t in batch)
        mean, log_sigma = m(x)
        return gaussian_nll(mean, log_sigma, y, fix).mean()

    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-3), clip_norm=1.0)
