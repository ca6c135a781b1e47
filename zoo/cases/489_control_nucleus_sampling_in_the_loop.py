"""CONTROL: REINFORCE on samples drawn with top-p filtering: logits outside the nucleus are -inf while sampling; the log-probabilities that
are differentiated come from the unfiltered logits of the drawn tokens."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="489_control_nucleus_sampling_in_the_loop", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


def top_p(logits, p=0.7):
    s, order = logits.sort(-1, descending=True)
    drop = s.softmax(-1).cumsum(-1) - s.softmax(-1) > p
    return logits.masked_fill(drop.scatter(-1, order, drop), float("-inf"))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = B.mlp(8, 16, 12), torch.Generator().manual_seed(0)

    def loss_fn(m, b):
        logits = m(b["x"])
        with torch.no_grad():
            filtered = top_p(logits).log_softmax(-1)
            drawn = (filtered.exp().cumsum(-1) > b["u"]).int().argmax(-1)
        reward = (drawn % 3 == 0).float()
        lp = logits.log_softmax(-1).gather(-1, drawn[:, None])[:, 0]
        return -((reward - 0.3) * lp).mean() - 0.01 * torch.distributions.Categorical(logits=logits).entropy().mean()

    data = [dict(x=b["x"], u=torch.rand(6, 1, generator=g)) for b in B.xy(10)]
    return Case(m, loss_fn, data, B.adam(m, 3e-3))
