"""CONTROL: forward returns log_softmax and the loss is cross_entropy with label smoothing. log_softmax of log-probabilities is the same log-probabilities, so nothing is squeezed twice; smoothing keeps the loss well above 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="991_control_log_probabilities_and_smoothing", source="standard practice", looks_like=["softmax_twice"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.25)


class LogNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.body, s.out = nn.Sequential(nn.Linear(12, 40), nn.Hardswish(), nn.Linear(40, 4)), nn.LogSoftmax(-1)

    def forward(s, x):
        return s.out(s.body(x))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"], label_smoothing=0.1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = LogNet(), S.cat(S.classes(16, seed=99, sep=2.0))
    return SCase(m, loss_fn, S.classes(120, sep=2.0), torch.optim.NAdam(m.parameters(), lr=5e-3), quality=lambda c: S.heldout_err(m, test))
