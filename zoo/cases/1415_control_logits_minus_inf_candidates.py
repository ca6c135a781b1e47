"""CONTROL: a ranking head gives absent candidates -inf; the target is always present, so log_softmax, the loss and all gradients are finite."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1415_control_logits_minus_inf_candidates", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[],
             source="standard practice")


class Ranker(nn.Module):
    def __init__(s):
        super().__init__()
        s.score = B.mlp(6, 24, 1, nn.SiLU)

    def forward(s, x, present):
        return s.score(x).squeeze(-1).masked_fill(~present, float("-inf"))


def loss_fn(m, b):
    lp = F.log_softmax(m(b["x"], b["present"]), -1)
    return -lp.gather(1, b["pick"][:, None]).mean()


def make(seed=0, fix=None):
    m, g = Ranker(), torch.Generator().manual_seed(7)
    data = []
    for _ in range(12):
        present = torch.rand(5, 8, generator=g) > 0.5
        pick = torch.randint(0, 8, (5,), generator=g)
        present[torch.arange(5), pick] = True
        data.append(dict(x=torch.randn(5, 8, 6, generator=g), present=present, pick=pick))
    data[4]["present"][1] = False                 # only one candidate is left: probability 1, loss 0
    data[4]["present"][1, data[4]["pick"][1]] = True
    return Case(m, loss_fn, data, B.adam(m))
