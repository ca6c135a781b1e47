"""The last projection of a coupling network is set to zero "so that the flow starts as the identity", then wrapped in weight_norm: the
norm of a zero row is 0 and weight = g * v / ||v|| is 0/0 at the first call."""
import torch, torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm
from protocol import Case
TRUTH = dict(id="701_weight_norm_of_a_zero_projection", source="https://github.com/pytorch/pytorch/issues/19126",
             symptom="nan_loss", phase="forward", cause="zero_division", op="_weight_norm_interface", op_also=["_weight_norm", "div", "weight_norm"], module="flows.0.end.parametrizations.weight.0",
             module_also=["flows.0.end.parametrizations.weight", "flows.0.end"],
             line_marker="# <-- origin", first_bad_step=0, bad_rows=None, fixes_that_work=["init", "plain"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"init", "plain"}


class Coupling(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        self.start, self.end = weight_norm(nn.Linear(d // 2, 16)), nn.Linear(16, d)
        nn.init.zeros_(self.end.bias)
        nn.init.normal_(self.end.weight, std=1e-3) if fix == "init" else nn.init.zeros_(self.end.weight)
        if fix != "plain":
            self.end = weight_norm(self.end)

    def forward(self, z):
        a, b = z.chunk(2, -1)
        log_s, t = self.end(torch.relu(self.start(a))).chunk(2, -1)  # <-- origin
        return torch.cat([b * torch.exp(log_s) + t, a], -1), log_s.sum(-1)


class Flow(nn.Module):
    def __init__(self, d, fix):
        super().__init__()
        self.flows = nn.ModuleList(Coupling(d, fix) for _ in range(3))

    def forward(self, x):
        logdet = 0.0
        for f in self.flows:
            x, ld = f(x)
            logdet = logdet + ld
        return x, logdet


def nll(model, batch):
    (x,) = batch
    z, logdet = model(x)
    return (0.5 * z.square().sum(-1) - logdet).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Flow(6, fix), torch.Generator().manual_seed(71)
    return Case(m, nll, [(torch.randn(8, 6, generator=g) * 1.5 + 0.3,) for _ in range(6)], torch.optim.AdamW(m.parameters(), lr=1e-3))
