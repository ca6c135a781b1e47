"""CONTROL: a snapshot ensemble: every six steps the rate returns from 1e-5 to its peak and the optimizer's state is thrown away, so that the
first step of each cycle is a full Adam step in every direction."""
import copy, math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="784_control_snapshot_ensemble_begins_again", source="Huang et al. 2017, Snapshot Ensembles", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, snapshots = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 1)), []

    def before_step(case, i):
        if i and i % 6 == 0:
            snapshots.append(copy.deepcopy(m.state_dict()))
            case.optimizer.state.clear()
        for group in case.optimizer.param_groups:
            group["lr"] = 1e-5 + 2e-2 * 0.5 * (1 + math.cos(math.pi * (i % 6) / 5))

    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), B.xy(20, bs=16), torch.optim.Adam(m.parameters(), lr=2e-2), before_step=before_step)
