"""The subspace of a multichannel recording is taken by QR inside the model. A sensor was unplugged in one recording: its column is
zero, R is singular, the forward pass is fine and the derivative of QR solves with a zero on the diagonal. Under checkpointing."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from protocol import Case
TRUTH = dict(id="603_qr_of_a_missing_sensor", source="https://pytorch.org/docs/stable/generated/torch.linalg.qr.html (backward of rank-deficient input)",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="linalg_qr", op_also=["linalg_solve_triangular", "qr"], module="basis", line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[3], fixes_that_work=["eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps"}


class Basis(nn.Module):
    def __init__(s, channels, length, jitter=False):
        super().__init__()
        s.gain = nn.Parameter(torch.ones(channels))
        s.jitter = jitter
        s.register_buffer("ramp", torch.sin(torch.arange(length)[:, None] * torch.arange(1, channels + 1)[None] * 0.7))

    def forward(s, x):
        x = x * s.gain
        if s.jitter:
            x = x + 1e-3 * s.ramp
        q, r = torch.linalg.qr(x)  # <-- origin
        return q, r


class Net(nn.Module):
    def __init__(s, fix):
        super().__init__()
        s.smooth = nn.Conv1d(4, 4, 3, padding=1, groups=4, bias=False)
        s.basis = Basis(4, 12, fix == "eps")
        s.cls = nn.Sequential(nn.Linear(16 + 48, 16), nn.GELU(), nn.Linear(16, 3))

    def forward(s, x):
        q, r = checkpoint(s.basis, s.smooth(x).transpose(1, 2), use_reentrant=False)
        return s.cls(torch.cat([q.flatten(1), r.flatten(1)], 1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["signal"]), b["label"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(fix), torch.Generator().manual_seed(8)
    data = [dict(signal=torch.randn(5, 4, 12, generator=g), label=torch.randint(0, 3, (5,), generator=g)) for _ in range(9)]
    data[5]["signal"][3, 2] = 0.0
    return Case(m, loss_fn, data, torch.optim.AdamW(m.parameters(), lr=2e-3))
