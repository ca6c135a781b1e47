"""The key bias of attention shifts every score of a row alike, softmax does not see it: its gradient is rounding dust. So with biases before batch norm."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="585_control_key_bias_has_no_gradient", source="written for this set, after a kind of report often seen: control key bias has no gradient", symptom="none", phase="none", cause="none",
             op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])
FIXES = set()


class Whisperish(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.conv, self.bn = nn.Conv1d(4, d, 3, padding=1, bias=True), nn.BatchNorm1d(d)
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.cls = nn.Linear(d, 3)

    def forward(self, mel):
        x = F.gelu(self.bn(self.conv(mel))).transpose(1, 2)
        w = (self.query(x) @ self.key(x).mT / 12**0.5).softmax(-1)
        return self.cls((w @ self.value(x)).mean(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = Whisperish()
    data = [(torch.randn(6, 4, 16), torch.randint(0, 3, (6,))) for _ in range(14)]
    return Case(net, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
