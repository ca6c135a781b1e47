"""SimCLR with a compiled encoder: the exponentials of cosine/temperature are summed by hand at temperature 0.01. A pair whose two
views came out identical has cosine one, and exp(100) is out of range."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="417_nt_xent_by_hand_at_a_low_temperature", source="common report: NT-Xent in plain exp overflows at small temperatures",
             symptom="nan_loss", phase="loss", cause="exp_overflow", op="exp", op_also=["div"], module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[2], fixes_that_work=["clamp", "logsumexp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "logsumexp"}


def nt_xent(a, b, temperature=0.01, fix=None):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    sim = a @ b.T / temperature
    if fix == "logsumexp":
        return (torch.logsumexp(sim, -1) - sim.diagonal()).mean()
    if fix == "clamp":
        sim = sim.clamp(max=80.0)
    e = sim.exp()  # <-- origin
    return -torch.log(e.diagonal() / e.sum(-1)).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    enc = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Tanh(), nn.Linear(32, 16, bias=False))
    net = torch.compile(enc, backend="eager")
    g, data = torch.Generator().manual_seed(8), []
    for _ in range(7):
        x = torch.randn(6, 32, generator=g)
        data.append({"view1": x + 1.2 * torch.randn(6, 32, generator=g), "view2": x + 1.2 * torch.randn(6, 32, generator=g)})
    data[4]["view2"][2] = data[4]["view1"][2]
    return Case(net, lambda m, b: nt_xent(m(b["view1"]), m(b["view2"]), fix=fix), data, B.sgd(net, 1e-3))
