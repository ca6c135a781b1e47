"""Delayed scaling whose history was loaded from a run that overflowed: one entry is infinite, so the scale is 0, every
activation is rounded to 0 and 0 / 0 is NaN when it is scaled back. It comes with the first step that uses the history."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="345_fp8_amax_history_with_an_infinity", source="https://github.com/NVIDIA/TransformerEngine/issues/1190 (amax history is part of the checkpoint)", symptom="nan_loss", phase="state", cause="poisoned_state",
             op=None, module=None, module_also=["fc1"], line_marker=None, first_bad_step=4, bad_rows=None,
             fixes_that_work=["restore_buffers"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"restore_buffers"}


class Float8Linear(nn.Linear):
    def __init__(self, i, o, fix):
        super().__init__(i, o)
        self.fix = fix
        self.register_buffer("amax_history", torch.full((4,), 4.0))

    def forward(self, x):
        scale = 448.0 / self.amax_history.amax()
        with torch.no_grad():
            self.amax_history.copy_(torch.roll(self.amax_history, 1))
            self.amax_history[0] = x.detach().abs().amax()
        small = (x.detach() * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        rounded = small.to(x.dtype) / scale
        return super().forward(x + (rounded - x).detach())


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fc1, self.fc2 = Float8Linear(8, 16, fix), nn.Linear(16, 1)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


def resume(case, i):
    if i == 4 and case.model.fc1.fix != "restore_buffers":
        case.model.fc1.amax_history[2] = float("inf")


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = Net(fix), B.xy(9)
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.adam(m, 1e-3), before_step=resume)
