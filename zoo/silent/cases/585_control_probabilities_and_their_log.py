"""CONTROL: the model returns probabilities; the loss is nll of their logarithm. The auxiliary head returns log-probabilities into cross_entropy, which leaves them as they are."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="585_control_probabilities_and_their_log", source="standard practice; log_softmax is idempotent", looks_like=["softmax_twice"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.3)


class Net(S.Classifier):
    def __init__(s):
        super().__init__()
        s.aux = nn.Linear(32, 4)

    def forward(s, x):
        h = s.features(x)
        s.side = torch.log_softmax(s.aux(h), -1)
        return torch.softmax(s.head(h), -1)


def loss_fn(m, b):
    p = m(b["x"])
    return F.nll_loss(torch.log(p.clamp_min(1e-8)), b["y"]) + 0.3 * F.cross_entropy(m.side, b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Net(), S.cat(S.classes(16, seed=99))
    return SCase(m, loss_fn, S.classes(80), torch.optim.Adam(m.parameters(), lr=5e-3), quality=lambda c: S.heldout_err(m, test))
