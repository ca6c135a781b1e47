"""A hidden Markov model with a left-to-right topology, summed in log space: two states that cannot be reached are both -inf and
logaddexp has no derivative there."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="413_hmm_states_that_cannot_be_reached", source="https://github.com/pytorch/pytorch/issues/49724",
             symptom="nan_grad", phase="backward", cause="domain_edge_grad", op="logaddexp", module="", line_marker="# <-- origin",
             first_bad_step=0, bad_rows=None, fixes_that_work=["finfo_min"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"finfo_min"}


class LeftToRight(nn.Module):
    def __init__(self, states=5, symbols=6, low=float("-inf")):
        super().__init__()
        self.emit = nn.Linear(states, symbols, bias=False)
        self.stay = nn.Parameter(torch.zeros(states))
        self.low = low

    def advance(self, alpha, e):
        stay, go = torch.nn.functional.logsigmoid(self.stay), torch.nn.functional.logsigmoid(-self.stay)
        first = alpha.new_full((alpha.shape[0], 1), self.low)
        arrived = torch.cat([first, (alpha + go)[:, :-1]], 1)
        return torch.logaddexp(alpha + stay, arrived) + e  # <-- origin

    def forward(self, obs):
        logp = torch.log_softmax(self.emit.weight.T, -1)
        alpha = torch.full((obs.shape[0], 5), self.low)
        alpha[:, 0] = 0.0
        alpha = alpha + logp[:, obs[:, 0]].T
        for t in range(1, obs.shape[1]):
            alpha = self.advance(alpha, logp[:, obs[:, t]].T)
        return torch.logsumexp(alpha, -1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    hmm = LeftToRight(low=-1e9 if fix == "finfo_min" else float("-inf"))
    g = torch.Generator().manual_seed(7)
    data = [torch.randint(0, 6, (5, 8), generator=g) for _ in range(6)]
    return Case(hmm, lambda m, obs: -m(obs).mean(), data, B.adam(hmm, 1e-2))
