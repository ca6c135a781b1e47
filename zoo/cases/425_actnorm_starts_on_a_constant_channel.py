"""A normalising flow: ActNorm sets its scale from the first batch, and one channel of the images is constant there."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="425_actnorm_starts_on_a_constant_channel", source="https://arxiv.org/abs/1807.03039 (data-dependent initialisation)",
             symptom="nan_loss", phase="forward", cause="zero_division", op="reciprocal", op_also=["div", "mul"], module="steps.0.actnorm", line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["eps", "clamp"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class ActNorm(nn.Module):
    def __init__(self, c, fix=None):
        super().__init__()
        self.loc, self.scale, self.fix = nn.Parameter(torch.zeros(1, c)), nn.Parameter(torch.ones(1, c)), fix
        self.register_buffer("ready", torch.tensor(False))

    @torch.no_grad()
    def start(self, x):
        mean, std = x.mean(0, keepdim=True), x.std(0, keepdim=True)
        if self.fix == "eps":
            std = std + 1e-3
        if self.fix == "clamp":
            std = std.clamp(min=1e-3)
        self.loc.data.copy_(-mean)
        self.scale.data.copy_(1.0 / std)  # <-- origin
        self.ready.fill_(True)

    def forward(self, x):
        if not self.ready:
            self.start(x)
        return (x + self.loc) * self.scale, self.scale.abs().log().sum()


class Step(nn.Module):
    def __init__(self, c, fix):
        super().__init__()
        self.actnorm, self.net = ActNorm(c, fix), nn.Linear(c // 2, c)

    def forward(self, x):
        x, ld = self.actnorm(x)
        a, b = x.chunk(2, -1)
        s, t = self.net(a).chunk(2, -1)
        s = torch.tanh(s)
        return torch.cat([b * s.exp() + t, a], -1), ld + s.sum(-1)


class Flow(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.steps = nn.ModuleList(Step(6, fix) for _ in range(2))

    def forward(self, x):
        total = 0.0
        for s in self.steps:
            x, ld = s(x)
            total = total + ld
        return x, total


def nll(m, x):
    z, ld = m(x)
    return (0.5 * z.pow(2).sum(-1) - ld).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(7)
    data = [torch.randn(8, 6, generator=g) for _ in range(6)]
    for x in data:
        x[:, 2] = 0.5 if x is data[0] else 0.5 + 0.1 * x[:, 2]
    m = Flow(fix)
    return Case(m, nll, data, B.adam(m, 1e-4))
