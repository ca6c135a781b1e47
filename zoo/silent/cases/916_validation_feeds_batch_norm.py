"""Validation on recordings of another sensor (other offset and gain) under no_grad but without eval(): batch norm takes the validation data into its running statistics. After the last validation the saved
model normalises its own inputs with the other sensor's mean."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="916_validation_feeds_batch_norm", source="constructed", symptom="silent", phase="loop", cause="train_mode_in_eval", op=None, module="net.1", module_also=["net.4"], bad_rows=None,
             line_marker="# <-- origin", first_bad_step=9, knowable_at=9, tensors=["net.1.running_mean", "net.1.running_var", "net.4.running_mean"],
             static_visible=dict(source="yes: no eval() in validate", objects="no: after the first validation yes (num_batches_tracked above the number of steps)"),
             quality_limit=0.4, margin=2.0, fixes_that_work=["eval"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"eval"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4))

    def forward(s, x):
        return s.net(x[:, None])


def signal(case, i, r):
    """more batches in the running statistics than training steps"""
    return i >= 0 and int(case.model.net[1].num_batches_tracked) > i + 1


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, val, test = Net(), S.classes(12, seed=5, shift=4.0, scale=2.5), S.cat(S.classes(16, seed=99))

    @torch.no_grad()
    def validate():
        if fix:
            m.eval()
        loss = sum(float(S.ce(m, b)) for b in val) / len(val)  # <-- origin
        m.train()
        return loss

    def after(case, i):
        if (i + 1) % 10 == 0:
            case.extra.setdefault("val", []).append(validate())

    return SCase(m, S.ce, S.classes(80), torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True), after_step=after, quality=lambda c: S.heldout_ce(m, test))
