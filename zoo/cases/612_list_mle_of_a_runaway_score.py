"""ListMLE: scores are shifted by the maximum, exponentiated, summed from the end of the list and logged. In one list the least relevant
document scores 120 below the best: its exp is 0 and so is the last partial sum."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="612_list_mle_of_a_runaway_score", source="https://github.com/allegro/allRank/blob/master/allrank/models/losses/listMLE.py (why it adds eps)",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", module=None, line_marker="# <-- origin", first_bad_step=6, bad_rows=[2],
             fixes_that_work=["eps", "clamp", "logcumsumexp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp", "logcumsumexp"}


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.skip, self.out = nn.Linear(5, 12), nn.Linear(5, 1, bias=False), nn.Linear(12, 1)

    def forward(self, docs):
        return (self.out(torch.tanh(self.hidden(docs))) + self.skip(docs)).squeeze(-1)


def list_mle(scores, relevance, fix=None):
    s = scores.gather(1, relevance.argsort(1, descending=True))
    s = s - s.max(1, keepdim=True).values.detach()
    if fix == "logcumsumexp":
        return (s.flip(1).logcumsumexp(1).flip(1) - s).sum(1).mean()
    tail = s.exp().flip(1).cumsum(1).flip(1)
    if fix == "eps":
        tail = tail + 1e-10
    elif fix == "clamp":
        tail = tail.clamp_min(1e-10)
    return (tail.log() - s).sum(1).mean()  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Scorer(), torch.Generator().manual_seed(5)
    data = [(torch.randn(4, 6, 5, generator=g), torch.rand(4, 6, generator=g)) for _ in range(10)]
    worst = data[6][1][2].argmin()
    direction = m.skip.weight.detach()[0]
    data[6][0][2, worst] = -130.0 * direction / direction.pow(2).sum()  # a feature in raw units
    return Case(m, lambda m, b: list_mle(m(b[0]), b[1], fix), data, torch.optim.SGD(m.parameters(), lr=2e-3, momentum=0.8))
