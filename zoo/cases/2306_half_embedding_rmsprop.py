"""Parameters in fp16 with RMSprop: eps=1e-8 is 0 in half precision and rows of the table without gradient are 0/0 in the first update."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2306_half_embedding_rmsprop',
             source='own, from practice',
             symptom='nan_param',
             phase='optimizer',
             cause='optimizer_eps_underflow',
             op='addcdiv',
             op_also=['div'],
             module='embed',
             line_marker=None,
             first_bad_step=0,
             bad_rows=None,
             fixes_that_work=['eps', 'fp32_state'],
             fixes_that_do_not=['clip', 'lr_down', 'skip_batch'],
             tensor='embed.weight',
             tensor_kind='param')
FIXES = {'eps', 'fp32_state'}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.head = nn.Embedding(30, 8), nn.Linear(8, 4)

    def forward(s, ids):
        return s.head(s.embed(ids).mean(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]).float(), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(2)
    if fix != "fp32_state":
        m.half()
    data = [dict(ids=torch.randint(0, 20, (6, 4), generator=g), y=torch.randint(0, 4, (6,), generator=g)) for _ in range(8)]
    opt = torch.optim.RMSprop(m.parameters(), lr=1e-3, eps=1e-3 if fix == "eps" else 1e-8)
    return Case(m, loss_fn, data, opt)
