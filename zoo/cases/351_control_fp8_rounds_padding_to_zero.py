"""CONTROL: block-scaled float8 in which padding is zero, small gradients of the padding are rounded to zero and an
unused block has the floor as its scale: nothing of it is wrong."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="351_control_fp8_rounds_padding_to_zero", source="https://arxiv.org/abs/2310.10537", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def rounded(x, kind, top):
    blocks = x.reshape(len(x), -1, 8)
    shared = torch.exp2(torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30))) - 7)
    return ((blocks / shared).clamp(-top, top).to(kind).to(x.dtype) * shared).reshape(x.shape)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return rounded(x, torch.float8_e4m3fn, 448.0)

    @staticmethod
    def backward(ctx, grad):
        return rounded(grad, torch.float8_e5m2, 57344.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.fc2(Round.apply(torch.tanh(self.fc1(Round.apply(x)))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(), B.xy(12, d=16)
    for b in data:
        b["x"][:, 8:] = 0.0
    data[7]["x"][2].zero_()
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.adam(m, 1e-3))
