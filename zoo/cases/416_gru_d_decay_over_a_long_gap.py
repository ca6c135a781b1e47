"""GRU-D on hospital records: the decay exp(-w * dt) has no ReLU on w. One feature learned a negative w, which is harmless for hours
and overflows for the patient who came back after four years."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="416_gru_d_decay_over_a_long_gap", source="https://arxiv.org/abs/1606.01865: the decay needs max(0, .)",
             symptom="nan_loss", phase="forward", cause="exp_overflow", op="exp", op_also=["mul"], module="cell.decay", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[3], fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp"}


class Decay(nn.Module):
    def __init__(self, n, fix):
        super().__init__()
        self.w, self.fix = nn.Parameter(torch.linspace(-0.004, 0.02, n)), fix

    def forward(self, dt):
        rate = -(self.w * dt.unsqueeze(-1))
        if self.fix == "clamp":
            rate = rate.clamp(max=0.0)
        return torch.exp(rate)  # <-- origin


class Cell(nn.Module):
    def __init__(self, n, h, fix):
        super().__init__()
        self.decay, self.gru = Decay(h, fix), nn.GRUCell(n, h)

    def forward(self, x, dt, h):
        return self.gru(x, self.decay(dt) * h)


class Ward(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.cell, self.risk = Cell(4, 8, fix), nn.Linear(8, 1)

    def forward(self, values, gaps):
        h = values.new_zeros(values.shape[0], 8)
        for t in range(values.shape[1]):
            h = self.cell(values[:, t], gaps[:, t], h)
        return self.risk(h)[:, 0]


def nll(model, record):
    return F.binary_cross_entropy_with_logits(model(record["values"], record["gap_hours"]), record["died"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Ward(fix), torch.Generator().manual_seed(31), []
    for _ in range(8):
        data.append(dict(values=torch.randn(5, 6, 4, generator=g), gap_hours=torch.rand(5, 6, generator=g) * 48, died=torch.randint(0, 2, (5,), generator=g).float()))
    data[5]["gap_hours"][3, 4] = 4 * 365 * 24.0
    return Case(m, nll, data, B.adam(m, 1e-5))
