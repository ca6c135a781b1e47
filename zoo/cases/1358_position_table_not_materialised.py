"""The model was built on the meta device and materialised with to_empty: the non-persistent table of inverse frequencies is
not in the checkpoint and holds whatever the memory held."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1358_position_table_not_materialised", source="commonly reported; no link was looked up",
             symptom="nan_loss", phase="state", cause="uninitialised", op=None, module="rotary", line_marker=None,
             tensor="rotary.inv_freq", tensor_kind="buffer", first_bad_step=0, bad_rows=None,
             fixes_that_work=["init"], fixes_that_do_not=["clip", "skip_batch", "lr_down"])
FIXES = {"init"}


class Rotary(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.d = d
        s.register_buffer("inv_freq", s.table(), persistent=False)

    def table(s):
        return 1.0 / (100.0 ** (torch.arange(0, s.d, 2).float() / s.d))

    def forward(s, x):
        a = torch.arange(x.shape[1])[:, None] * s.inv_freq
        x1, x2 = x[..., ::2], x[..., 1::2]
        return torch.cat([x1 * a.cos() - x2 * a.sin(), x1 * a.sin() + x2 * a.cos()], -1)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.tok, s.rotary, s.mix, s.out = nn.Embedding(20, 12), Rotary(12), nn.Conv1d(12, 12, 3), nn.Linear(12, 20)

    def forward(s, ids):
        h = s.rotary(s.tok(ids)).transpose(1, 2)
        return s.out(torch.relu(s.mix(F.pad(h, (2, 0)))).transpose(1, 2))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"])[:, :-1].flatten(0, 1), b["ids"][:, 1:].flatten())


def make(seed=0, fix=None):
    m = Net()
    if not fix:
        m.rotary.inv_freq.copy_(torch.tensor([3.1e-41, float("nan"), 0.0, -2.2e38, float("nan"), 6.0e-3]))   # left-over bytes
    return Case(m, loss_fn, [dict(ids=b["ids"]) for b in B.lm_data(8, V=20)], B.adam(m))
