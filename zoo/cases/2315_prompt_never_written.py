"""A prompt parameter made with torch.empty and never initialised (its memory held NaN)."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id='2315_prompt_never_written',
             source='own, from practice',
             symptom='nan_loss',
             phase='state',
             cause='uninitialised',
             op=None,
             op_also=[],
             module='prompt',
             line_marker=None,
             first_bad_step=0,
             bad_rows=None,
             fixes_that_work=['init'],
             fixes_that_do_not=['clip', 'skip_batch', 'lr_down'],
             tensor='prompt.tokens',
             tensor_kind='param')
FIXES = {'init'}


class Prompt(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.tokens = nn.Parameter(torch.empty(2, d))
        with torch.no_grad():                   # what empty memory may hold, made repeatable
            s.tokens.fill_(0.01)
            s.tokens[1, 3:6] = float("nan")

    def forward(s, x):
        return torch.cat([s.tokens.expand(len(x), -1, -1), x], 1)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed, s.prompt, s.block, s.head = nn.Embedding(20, 16), Prompt(16), B.Block(16), nn.Linear(16, 20)

    def forward(s, ids):
        return s.head(s.block(s.prompt(s.embed(ids))).mean(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"]), b["y"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(10)
    if fix == "init":
        nn.init.normal_(m.prompt.tokens, std=0.02)
    data = [dict(ids=torch.randint(0, 20, (6, 5), generator=g), y=torch.randint(0, 20, (6,), generator=g)) for _ in range(8)]
    return Case(m, loss_fn, data, B.adam(m))
