"""Pointer policy: visited nodes are masked with -inf before log_softmax; a finished tour has no node left, and log_softmax over
a row of -inf is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="223_no_legal_action", source="common report: action masks in routing and card-game policies",
             symptom="nan_loss", phase="loss", cause="masked_softmax_row", op="log_softmax", op_also=["sub", "mul"], module=None, line_marker="# <-- origin",
             first_bad_step=8, bad_rows=[1, 2], fixes_that_work=["finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "temperature", "zero_nan_grads", "lr_down"])
FIXES = {"finfo_min", "temperature"}


class Pointer(nn.Module):
    def __init__(s):
        super().__init__()
        s.node, s.ctx = nn.Linear(2, 12), nn.GRUCell(2, 12)

    def forward(s, coords, last):
        h = s.ctx(last, torch.zeros(len(last), 12))
        return torch.einsum("bnd,bd->bn", torch.tanh(s.node(coords)), h)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = Pointer()
    tau = 3.0 if fix == "temperature" else 1.0

    def loss_fn(m, b):
        score = m(b["coords"], b["last"]) / tau
        score = score.masked_fill(b["visited"], -1e9 if fix == "finfo_min" else float("-inf"))
        logp = F.log_softmax(score, -1)  # <-- origin
        taken = logp.gather(1, b["next"][:, None])[:, 0]
        return -(b["adv"] * taken).mean()

    g = torch.Generator().manual_seed(9)
    data = []
    for _ in range(11):
        visited = torch.rand(6, 7, generator=g) < 0.4
        nxt = torch.randint(0, 7, (6,), generator=g)
        visited.scatter_(1, nxt[:, None], False)
        data.append(dict(coords=torch.rand(6, 7, 2, generator=g), last=torch.rand(6, 2, generator=g), visited=visited, next=nxt, adv=torch.randn(6, generator=g)))
    data[8]["visited"][1:3] = True
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True))
