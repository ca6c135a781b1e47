"""CONTROL: the tanh form of GELU written by hand in a half-precision model. For loud units x ** 3 is above 65504 and becomes inf, tanh of inf
is 1, which is the right answer, and the derivative there is an honest 0."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="780_control_cube_overflows_inside_the_gelu", source="common sight: gelu_new in fp16", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class GeluNew(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = nn.Sequential(nn.Linear(6, 24), GeluNew(), nn.LayerNorm(24), nn.Linear(24, 3)).half(), torch.Generator().manual_seed(90)
    with torch.no_grad():
        m[0].weight[2] *= 60.0
    data = [(torch.randn(8, 6, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(10)]
    data[3][0][1] *= 3
    return Case(m, lambda m, b: F.cross_entropy(m(b[0].half()).float(), b[1]), data, torch.optim.SGD(m.parameters(), lr=5e-3))
