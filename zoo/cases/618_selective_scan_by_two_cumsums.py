"""A state-space layer without a kernel: h = exp(L) * cumsum(x * exp(-L)) with L = cumsum(log a). A recording with long gaps between events
forgets so much that exp(-L) overflows; exp(L) is 0 there and 0 * inf is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="618_selective_scan_by_two_cumsums", source="https://github.com/MzeroMiko/mamba-mini/issues/6",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="exp", op_also=["mul"], module="backbone.1.ssm", module_also=["backbone.0.ssm"], line_marker="# <-- origin", first_bad_step=5, bad_rows=[1],
             fixes_that_work=["clamp", "sequential", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "sequential"}


def scan(x, log_a, how=None):
    if how == "sequential":
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = h * log_a[:, t].exp() + x[:, t]
            out.append(h)
        return torch.stack(out, 1)
    total = log_a.cumsum(1)
    if how == "clamp":
        total = total.clamp(min=-30.0)
    grow = torch.exp(-total)  # <-- origin
    return torch.exp(total) * torch.cumsum(x * grow, 1)


class SSM(nn.Module):
    def __init__(self, d, how, rate):
        super().__init__()
        self.rate, self.inp, self.out, self.how = nn.Parameter(torch.full((d,), rate)), nn.Linear(d, d), nn.Linear(d, d), how

    def forward(self, x, dt):
        return self.out(scan(self.inp(x), -dt[..., None] * F.softplus(self.rate), self.how))


class Layer(nn.Module):
    def __init__(self, d, how, rate):
        super().__init__()
        self.norm, self.ssm = nn.LayerNorm(d), SSM(d, how, rate)

    def forward(self, x, dt):
        return x + self.ssm(self.norm(x), dt)


class Net(nn.Module):
    def __init__(self, how, d=10):
        super().__init__()
        self.embed = nn.Linear(3, d)
        self.backbone = nn.ModuleList([Layer(d, how, -6.0), Layer(d, how, 0.5)])
        self.head = nn.Linear(d, 1)

    def forward(self, events, dt):
        x = self.embed(events)
        for layer in self.backbone:
            x = layer(x, dt)
        return self.head(x.mean(1)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(fix), torch.Generator().manual_seed(7)
    data = [{"events": torch.randn(4, 12, 3, generator=g), "dt": 0.1 + 0.5 * torch.rand(4, 12, generator=g), "y": torch.randn(4, generator=g)} for _ in range(9)]
    data[5]["dt"][1] = 15.0
    return Case(m, lambda m, b: F.smooth_l1_loss(m(b["events"], b["dt"]), b["y"]), data, torch.optim.RAdam(m.parameters(), lr=2e-3))
