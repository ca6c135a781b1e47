"""Local attention: a query whose whole window is padding has only -inf scores; softmax of that row is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2304_local_window_all_padding',
             source='own, from practice',
             symptom='nan_loss',
             phase='forward',
             cause='masked_softmax_row',
             op='softmax',
             op_also=[],
             module='attn',
             line_marker='# <-- origin',
             first_bad_step=7,
             bad_rows=[5],
             fixes_that_work=['finfo_min', 'skip_batch', 'drop_rows'],
             fixes_that_do_not=['clip', 'lr_down'])
FIXES = {'finfo_min'}


class LocalAttention(nn.Module):
    fix = None

    def __init__(s, d):
        super().__init__()
        s.qkv, s.o = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(s, x, real):
        q, k, v = s.qkv(x).chunk(3, -1)
        t = x.shape[1]
        near = (torch.arange(t)[:, None] - torch.arange(t)).abs() <= 2
        ok = near[None] & real[:, None, :]
        low = torch.finfo(x.dtype).min if s.fix == "finfo_min" else float("-inf")
        a = (q @ k.transpose(1, 2) / x.shape[-1] ** 0.5).masked_fill(~ok, low)
        w = torch.softmax(a, -1)  # <-- origin
        return s.o(w @ v)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.attn, s.head = nn.Embedding(20, 16), LocalAttention(16), nn.Linear(16, 4)

    def forward(s, ids, real):
        return s.head(s.attn(s.embed(ids), real).mean(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"], b["real"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(1)
    m.attn.fix = fix
    data = []
    for i in range(11):
        n = torch.randint(8, 11, (6,), generator=g)
        if i == 7:
            n[5] = 4
        ids = torch.randint(0, 20, (6, 10), generator=g)
        real = torch.arange(10) < n[:, None]
        data.append(dict(ids=ids, real=real, y=ids[:, 0] % 4))
    return Case(m, loss_fn, data, B.adam(m))
