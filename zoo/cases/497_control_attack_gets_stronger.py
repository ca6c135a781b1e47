"""CONTROL: adversarial training whose perturbation radius is ramped up: the loss rises from step to step because the task becomes harder."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="497_control_attack_gets_stronger", source="standard practice (adversarial training with an epsilon schedule)", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)), []
    with torch.no_grad():
        m[2].weight.mul_(4)
    for i, b in enumerate(B.xy(14)):
        with torch.no_grad():
            y = m(b["x"]).argmax(-1)
        data.append(dict(x=b["x"], y=y, radius=torch.tensor(0.15 * i)))

    def loss_fn(m, b):
        x = b["x"].clone().requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(m(x), b["y"]), x)
        return F.cross_entropy(m(b["x"] + b["radius"] * g.sign()), b["y"])

    return Case(m, loss_fn, data, B.adam(m, 1e-3), clip_norm=1.0)
