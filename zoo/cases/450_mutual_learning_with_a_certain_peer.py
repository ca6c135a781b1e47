"""Deep mutual learning: both networks get gradients from the KL divergence. Where a peer's softmax underflows to exactly zero, p*log p is
zero and its slope is minus infinity."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="450_mutual_learning_with_a_certain_peer", source="https://arxiv.org/abs/1706.00384; kl_div differentiated through its target", symptom="nan_grad", phase="backward", cause="domain_edge_grad",
             op="xlogy", op_also=["kl_div"], module=None, line_marker="# <-- origin", first_bad_step=4, bad_rows=[3], fixes_that_work=["clamp", "eps", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "eps"}


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = B.mlp(8, 16, 4), B.mlp(8, 16, 4, nn.ReLU)

    def forward(self, x):
        return self.left(x), self.right(x)


def agree(student, peer, fix):
    p = peer.softmax(-1)
    if fix == "clamp":
        p = p.clamp(min=1e-8)
    if fix == "eps":
        p = p + 1e-8
    return F.kl_div(student.log_softmax(-1), p, reduction="batchmean")  # <-- origin


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g, data = Pair(), torch.Generator().manual_seed(5), []
    with torch.no_grad():
        m.right.fc2.weight.mul_(6.0)
    for _ in range(7):
        x = torch.randn(5, 8, generator=g)
        data.append((x, torch.randint(0, 4, (5,), generator=g)))
    with torch.no_grad():  # a legal sample, far out, of which the right net is quite certain
        tries = 14 * torch.randn(4000, 8, generator=g)
        spread = m.right(tries).amax(-1) - m.right(tries).amin(-1)
        data[4][0][3] = tries[spread.argmax()]

    def loss_fn(m, b):
        a, c = m(b[0])
        return F.cross_entropy(a, b[1]) + F.cross_entropy(c, b[1]) + agree(a, c, fix)

    return Case(m, loss_fn, data, B.sgd(m, 1e-4))
