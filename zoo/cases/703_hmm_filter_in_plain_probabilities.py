"""A hidden Markov model with learned transitions and emissions, filtered with plain probabilities: alpha = (alpha @ A) * b. Every step
multiplies by about 0.1; a document of 80 tokens underflows float32 to zero and its log-likelihood is log(0)."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="703_hmm_filter_in_plain_probabilities", source="common report: forward algorithm underflows, loss inf for long sequences (use logsumexp)",
             symptom="inf_loss", phase="loss", cause="log_zero", op="log", module=None, line_marker="# <-- origin", first_bad_step=6, bad_rows=[2],
             fixes_that_work=["eps", "clamp", "log_space", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp", "log_space"}


class HMM(nn.Module):
    def __init__(self, k=4, v=24):
        super().__init__()
        self.start, self.trans, self.emit = (nn.Parameter(0.3 * torch.randn(*s)) for s in ((k,), (k, k), (k, v)))

    def forward(self):
        return self.start.log_softmax(-1), self.trans.log_softmax(-1), self.emit.log_softmax(-1)


def likelihood(params, tokens, length):
    start, A, E = (p.exp() for p in params)
    alpha = start * E[:, tokens[:, 0]].T
    for t in range(1, tokens.shape[1]):
        nxt = (alpha @ A) * E[:, tokens[:, t]].T
        alpha = torch.where((t < length)[:, None], nxt, alpha)
    return alpha.sum(-1)


def log_likelihood(params, tokens, length):
    start, A, E = params
    alpha = start + E[:, tokens[:, 0]].T
    for t in range(1, tokens.shape[1]):
        nxt = torch.logsumexp(alpha[:, :, None] + A, 1) + E[:, tokens[:, t]].T
        alpha = torch.where((t < length)[:, None], nxt, alpha)
    return alpha.logsumexp(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = HMM(), torch.Generator().manual_seed(73)
    data = []
    for i in range(9):
        length = torch.randint(6, 16, (5,), generator=g)
        if i == 6:
            length[2] = 80
        data.append({"tokens": torch.randint(0, 24, (5, int(length.max())), generator=g), "length": length})

    def loss_fn(m, b):
        params = m()
        if fix == "log_space":
            return -(log_likelihood(params, **b) / b["length"]).mean()
        p = likelihood(params, **b)
        if fix == "eps":
            p = p + 1e-37
        if fix == "clamp":
            p = p.clamp_min(1e-37)
        ll = torch.log(p)  # <-- origin
        return -(ll / b["length"]).mean()

    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-2))
