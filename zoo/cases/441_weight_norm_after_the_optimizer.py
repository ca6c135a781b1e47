"""weight_norm is applied to the head after the optimizer was built: the optimizer keeps the old weight, the two new tensors get gradients
and never move."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from protocol import Case
import blocks as B
TRUTH = dict(id="441_weight_norm_after_the_optimizer", source="common report: parametrisation registered after the optimizer", symptom="silent", phase="optimizer", cause="no_trainable_grad", op=None,
             module="head.parametrizations.weight", module_also=["head", None, "head.parametrizations"], line_marker=None, first_bad_step=0, bad_rows=None,
             fixes_that_work=["rebuild_optimizer"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"rebuild_optimizer"}


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.mid, self.head = nn.Conv1d(1, 8, 3, padding=1), nn.Conv1d(8, 8, 3, padding=2, dilation=2), nn.Conv1d(8, 1, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.mid(torch.tanh(self.stem(x)))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Wave(), torch.Generator().manual_seed(5), []
    for _ in range(8):
        x = torch.randn(4, 1, 16, generator=g)
        data.append({"audio": x, "target": x.roll(1, -1)})
    opt = B.adam(m, 1e-3)
    weight_norm(m.head)
    if fix == "rebuild_optimizer":
        opt = B.adam(m, 1e-3)
    start = {n: p.detach().clone() for n, p in m.named_parameters()}
    case = Case(m, lambda m, b: F.mse_loss(m(b["audio"]), b["target"]), data, opt)
    case.healthy = lambda log: all(r.loss_ok and r.grad_ok for r in log) and all(not torch.equal(p, start[n]) for n, p in m.named_parameters())
    return case
