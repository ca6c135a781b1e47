"""Inverse-frequency class weights are computed per batch; a class that does not occur gets weight 1/0 = inf, and the one-hot
product turns it into 0 * inf = NaN. Gradient accumulation over two micro-batches."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="211_class_weight_of_absent_class", source="https://github.com/fcakyon/balanced-loss/pull/12",
             symptom="nan_loss", phase="loss", cause="zero_division", op="reciprocal", op_also=["div", "mul"], module=None, line_marker="# <-- origin",
             first_bad_step=7, bad_rows=None, fixes_that_work=["eps", "gather_weight", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "gather_weight"}


class SegNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.enc, s.dec = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(s, x):
        return s.dec(F.leaky_relu(s.enc(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = SegNet()

    def balanced_ce(logits, target):
        hot = F.one_hot(target, 3).permute(0, 3, 1, 2).float()
        count = hot.sum([0, 2, 3])
        if fix == "eps":
            count = count.clamp_min(1.0)
        weight = 1.0 / count  # <-- origin
        logp = F.log_softmax(logits, 1)
        if fix == "gather_weight":
            return -(weight[target] * logp.gather(1, target[:, None])[:, 0]).sum() / 3
        return -(weight[None, :, None, None] * hot * logp).sum() / 3

    def loss_fn(m, b):
        return balanced_ce(m(b["x"]), b["mask"])

    g = torch.Generator().manual_seed(4)
    data = [dict(x=torch.randn(4, 2, 6, 6, generator=g), mask=torch.randint(0, 3, (4, 6, 6), generator=g)) for _ in range(12)]
    data[7]["mask"].clamp_(max=1)                 # no pixel of class 2 anywhere in this micro-batch
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9), accumulation=2)
