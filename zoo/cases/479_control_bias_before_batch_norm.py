"""CONTROL: convolutions keep their bias in front of batch norm, and attention its key bias: the true gradient of these is zero, what arrives is rounding noise,
and with SGD they hardly move or do not move at all."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="479_control_bias_before_batch_norm", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.attn, self.head = B.Attention(8), nn.Linear(8, 3)

    def forward(self, x):
        h = F.relu(self.bn(self.conv(x))).flatten(2).transpose(1, 2)
        return self.head(self.attn(h).mean(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(5)
    data = [(torch.randn(6, 1, 6, 6, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(10)]
    return Case(m, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, B.sgd(m, 1e-2))
