"""Multi-task learning with learned log-variances (Kendall et al.). The weighting module was cast to bf16 with the rest of the heads; its
values start at 4 where half an ulp is 0.0156, and the steps of AdamW are 0.001. The network learns, the weights of the tasks never move."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="607_task_uncertainties_stand_still_in_bf16", source="common report: learned loss weights cast to bf16 with the rest of the model",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, op_also=["add", "add_", "addcdiv", "addcdiv_"], module="weighting", module_also=["weighting.log_var", None], line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["fp32", "lr_up"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"fp32", "lr_up"}


class Weighting(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.log_var = nn.ParameterDict({t: nn.Parameter(torch.tensor(4.0)) for t in tasks})

    def forward(self, losses):
        return sum(torch.exp(-self.log_var[t].float()) * l + 0.5 * self.log_var[t].float() for t, l in losses.items())


class MultiTask(nn.Module):
    def __init__(self, tasks=("depth", "normal", "albedo")):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 24), nn.ReLU())
        self.heads = nn.ModuleDict({t: nn.Linear(24, 2) for t in tasks})
        self.weighting = Weighting(tasks)

    def forward(self, x):
        h = self.trunk(x)
        return {t: head(h) for t, head in self.heads.items()}


def loss_fn(m, b):
    out = m(b["x"])
    return m.weighting({t: (out[t] - b[t]).pow(2).mean() for t in out})


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = MultiTask(), torch.Generator().manual_seed(12)
    if fix != "fp32":
        m.weighting.to(torch.bfloat16)
    own = list(m.weighting.parameters())
    rest = [p for n, p in m.named_parameters() if not n.startswith("weighting")]
    opt = torch.optim.AdamW([{"params": rest, "lr": 1e-3}, {"params": own, "lr": 0.1 if fix == "lr_up" else 1e-3, "weight_decay": 0.0}])
    data = []
    for _ in range(12):
        x = torch.randn(8, 6, generator=g)
        data.append(dict(x=x, depth=x[:, :2], normal=x[:, 2:4].tanh(), albedo=0.5 * x[:, 4:]))
    start = [p.detach().clone() for p in own]
    return Case(m, loss_fn, data, opt, healthy=lambda log: all(not torch.equal(a, b) for a, b in zip(own, start)) and all(r.loss_ok and r.grad_ok for r in log))
