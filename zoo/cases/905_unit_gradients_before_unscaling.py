"""Every gradient tensor is normalised to length one right after backward, to tame a recurrent net; the scaler divides by its scale
afterwards, so what SGD gets is 1/16384 long. Nothing overflows and nothing is learned."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="905_unit_gradients_before_unscaling", source="written for this set after a common mistake; no single report",
             symptom="silent", phase="optimizer", cause="scaler_misuse", op=None, module=None, line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["unscale_first"], fixes_that_do_not=["lr_down", "clip"])
FIXES = {"unscale_first"}


class Counter(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb, s.rnn, s.out = nn.Embedding(12, 16), nn.RNN(16, 24, batch_first=True), nn.Linear(24, 12)

    def forward(s, ids):
        return s.out(s.rnn(s.emb(ids))[0])


def loss_fn(m, b):
    return F.cross_entropy(m(b["ids"][:, :-1]).float().flatten(0, 1), b["ids"][:, 1:].flatten())


def make(seed=0, fix=None):
    m, g = Counter(), torch.Generator().manual_seed(5)
    data = [dict(ids=(torch.randint(0, 12, (8, 1), generator=g) + torch.arange(10)[None]) % 12) for _ in range(16)]
    sc = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
    unscale = sc.unscale_
    if fix == "unscale_first":
        sc.unscale_ = lambda opt: None             # done below, before the normalising

    def after(case, i):
        if fix == "unscale_first":
            unscale(case.optimizer)
        for p in case.model.parameters():
            p.grad.div_(p.grad.norm() + 1e-6)

    opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    return Case(m, loss_fn, data, opt, autocast=torch.float16, scaler=sc, after_backward=after, healthy=lambda log: log[-1].loss < 0.9 * log[0].loss)
