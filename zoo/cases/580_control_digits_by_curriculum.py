"""Curriculum: the task gets harder in three stages, so the loss climbs at every stage. Healthy."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="580_control_digits_by_curriculum", source="written for this set, after a kind of report often seen: curriculum learning", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])
FIXES = set()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 1))
    batches = []
    for step in range(36):
        digits = 10 ** (step // 12)  # ones, tens, hundreds
        ab = torch.rand(16, 6) * digits ** 0.5
        batches.append((ab, ab.sum(1, keepdim=True) + ab[:, :1] * ab[:, 1:2]))
    return Case(net, lambda m, b: F.mse_loss(m(b[0]), b[1]), batches, torch.optim.Adam(net.parameters(), lr=3e-3), clip_norm=1.0,
                healthy=lambda log: log[11].loss < log[0].loss and log[35].loss < log[24].loss)
