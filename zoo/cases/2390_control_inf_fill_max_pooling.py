"""CONTROL: max pooling over real tokens with -inf fill; every row has at least one token."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2390_control_inf_fill_max_pooling',
             source='own, from practice',
             symptom='none',
             phase='none',
             cause='none',
             op=None,
             op_also=[],
             module=None,
             line_marker=None,
             first_bad_step=None,
             bad_rows=None,
             fixes_that_work=[],
             fixes_that_do_not=[])
FIXES = set()


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.head = nn.Embedding(20, 16), nn.Linear(16, 3)

    def forward(s, ids, real):
        return s.head(s.embed(ids).masked_fill(~real[..., None], float("-inf")).amax(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"], b["real"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(20)
    data = [dict(ids=torch.randint(0, 20, (6, 8), generator=g), real=torch.arange(8) < torch.randint(1, 9, (6, 1), generator=g),
                 y=torch.randint(0, 3, (6,), generator=g)) for _ in range(10)]
    return Case(m, loss_fn, data, B.adam(m))
