"""A home-made Adafactor without the 1e-30: the factored second moment of an embedding table is 0 in the rows of words that were not in the
first batch, and 0 / sqrt(0) is written into them."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="628_adafactor_of_words_not_seen_yet", source="https://arxiv.org/abs/1804.04235 (eps_1 regularises the squared gradient)",
             symptom="nan_param", phase="optimizer", cause="zero_division", op="div", module="embed", module_also=[None], line_marker="# <-- origin", first_bad_step=0, bad_rows=None,
             fixes_that_work=["eps", "clamp"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "clamp"}


class Adafactor(torch.optim.Optimizer):
    def __init__(self, params, lr, fix=None):
        super().__init__(params, dict(lr=lr))
        self.fix = fix

    def direction(self, p, state):
        sq = p.grad.square()
        if self.fix == "eps":
            sq = sq + 1e-30
        if p.dim() == 2:
            row, col = state.setdefault("row", torch.zeros(p.shape[0])), state.setdefault("col", torch.zeros(p.shape[1]))
            row.lerp_(sq.mean(1), 0.1)
            col.lerp_(sq.mean(0), 0.1)
            second = torch.outer(row / row.mean(), col)
        else:
            second = state.setdefault("sq", torch.zeros_like(p)).lerp_(sq, 0.1)
        root = second.sqrt()
        if self.fix == "clamp":
            root = root.clamp_min(1e-12)
        update = p.grad / root  # <-- origin
        return update / update.square().mean().sqrt().clamp(min=1.0)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(self.direction(p, self.state[p]), alpha=-group["lr"])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(60, 8), nn.Linear(8, 5)

    def forward(self, ids):
        return self.fc(torch.tanh(self.embed(ids)).mean(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Bag(), torch.Generator().manual_seed(37)
    data = [dict(ids=torch.randint(0, 60, (6, 5), generator=g), y=torch.randint(0, 5, (6,), generator=g)) for _ in range(8)]
    return Case(m, lambda m, b: F.cross_entropy(m(b["ids"]), b["y"]), data, Adafactor(m.parameters(), 5e-3, fix))
