"""CONTROL: delayed scaling that saturates: a loud sample is cut off at 448, as the format's papers say, and the history
follows it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="350_control_fp8_saturates_an_outlier", source="https://arxiv.org/abs/2209.05433", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Float8Linear(nn.Linear):
    def __init__(self, i, o):
        super().__init__(i, o)
        self.register_buffer("amax_history", torch.zeros(4))

    def forward(self, x):
        with torch.no_grad():
            self.amax_history.copy_(torch.roll(self.amax_history, 1))
            if bool(self.amax_history.amax() == 0):
                self.amax_history[0] = x.detach().abs().amax()
            scale = 448.0 / self.amax_history.amax().clamp_min(1e-12)
            self.amax_history[0] = x.detach().abs().amax()
            rounded = (x.detach() * scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) / scale
        return super().forward(x + (rounded - x).detach())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = nn.Sequential(Float8Linear(8, 16), nn.Tanh(), Float8Linear(16, 1)), B.xy(12)
    data[6]["x"][1] *= 30.0
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), data, B.adam(m, 1e-3))
