"""The forward goes through torch.func.functional_call with perturbed weights; a ReLU feature that is off is fed to a logarithm."""
import torch, torch.nn as nn
from torch.func import functional_call
from protocol import Case
import blocks as B
TRUTH = dict(id="328_functional_call_log_of_zero", source="common report: log features of a rectified layer",
             symptom="nan_loss", phase="forward", cause="log_zero", op="log", module="logs", line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[2], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Logs(nn.Module):
    fix = None

    def forward(s, x):
        return torch.log(x + (1e-4 if s.fix == "eps" else 0.0))  # <-- origin


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.logs, s.out = nn.Linear(8, 4), Logs(), nn.Linear(4, 1)

    def forward(s, x):
        return s.out(s.logs(torch.relu(s.inp(x).sum(-1, keepdim=True)).expand(-1, 4)))


def loss_fn(m, b):
    weights = {n: p * (1 + 1e-3) for n, p in m.named_parameters()}
    return (functional_call(m, weights, (b["x"],)) - b["y"]).abs().mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(8)
    m.logs.fix = fix
    with torch.no_grad():
        m.inp.weight.abs_(), m.inp.bias.fill_(0.1)
    for b in data:
        b["x"].abs_()
    data[4]["x"][2] *= -1.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
