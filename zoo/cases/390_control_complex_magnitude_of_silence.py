"""CONTROL: the magnitude of a complex spectrum by abs(): at exact silence its derivative is defined as zero."""
import torch
from protocol import Case
import blocks as B
TRUTH = dict(id="390_control_complex_magnitude_of_silence", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def loss_fn(m, b):
    return (torch.fft.rfft(m(b["x"]) * b["gate"][:, None]).abs() - 1.0).abs().mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data = B.mlp(8, 16, 32), B.xy(9)
    for i, b in enumerate(data):
        b["gate"] = torch.ones(6)
        b["gate"][i % 6] = 0.0
    return Case(m, loss_fn, data, B.adam(m, 1e-3))
