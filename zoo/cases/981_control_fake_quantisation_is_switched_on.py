"""CONTROL: quantisation-aware training: from step 16 on weights are rounded to three bits with a straight-through gradient. The loss jumps, as everybody expects, and recovers."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="981_control_fake_quantisation_is_switched_on", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class QLinear(nn.Linear):
    bits = None

    def forward(s, x):
        w = s.weight
        if s.bits:
            step = w.detach().abs().amax() / (2 ** (s.bits - 1) - 1)
            w = w + (torch.round(w / step) * step - w).detach()
        return F.linear(x, w, s.bias)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.fc1, s.fc2, s.fc3 = QLinear(8, 48), QLinear(48, 48), QLinear(48, 1)

    def forward(s, x):
        return s.fc3(F.relu(s.fc2(F.relu(s.fc1(x)))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(1, bs=64)
    with torch.no_grad():
        m.fc1.weight[0, 0], m.fc2.weight[0, 0] = 1.2, 0.6      # outliers make the grid coarse

    def before(case, i):
        for layer in (m.fc1, m.fc2, m.fc3):
            layer.bits = 3 if i >= 16 else None

    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data * 32, B.adam(m, 3e-3), before_step=before,
                healthy=lambda log: log[16].loss > 3 * log[15].loss and log[-1].loss < log[16].loss)
