"""CONTROL: the memory of past features is a buffer full of NaN, so that a read of an empty place would be noticed; only the places written so far are read. It takes nine steps to fill."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="2182_control_ring_buffer_of_nan_fills_as_it_goes", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[], nonfinite_in_passing=True)


class Memory(nn.Module):
    def __init__(s, size=54, d=8):
        super().__init__()
        s.enc, s.head = nn.Linear(8, d), nn.Linear(2 * d, 1)
        s.register_buffer("past", torch.full((size, d), float("nan")))
        s.written = 0

    def forward(s, x):
        h = torch.tanh(s.enc(x))
        if s.written:
            past = s.past[: min(s.written, len(s.past))].clone()
            seen = torch.softmax(h @ past.T, -1) @ past
        else:
            seen = torch.zeros_like(h)
        at = (s.written + torch.arange(len(h))) % len(s.past)
        s.past[at] = h.detach()
        s.written += len(h)
        return s.head(torch.cat([h, seen], -1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Memory()
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]), b["y"]), B.xy(16, seed=3), B.adam(m, 3e-3))
