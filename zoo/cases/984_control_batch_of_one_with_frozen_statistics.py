"""CONTROL: detection fine-tuning with batches of one image: BatchNorm runs in eval mode on frozen statistics and some of its gains are exactly zero (zero-init residual)."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="984_control_batch_of_one_with_frozen_statistics", source="standard practice", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Res(nn.Module):
    def __init__(s, c=8):
        super().__init__()
        s.conv, s.bn = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        nn.init.zeros_(s.bn.weight)

    def forward(s, x):
        return F.relu(x + s.bn(s.conv(x)))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem, s.body, s.head = nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(Res(), Res()), nn.Linear(8, 4)

    def train(s, mode=True):
        super().train(mode)
        for mod in s.modules():
            if isinstance(mod, nn.BatchNorm2d):
                mod.eval()
                mod.weight.requires_grad_(False)
                mod.bias.requires_grad_(False)
        return s

    def forward(s, x):
        return s.head(s.body(F.relu(s.stem(x))).mean([2, 3]))


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(84)
    m.train()
    data = [dict(x=torch.randn(1, 3, 8, 8, generator=g), y=torch.randint(0, 4, (1,), generator=g)) for _ in range(14)]
    opt = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=1e-2, momentum=0.9)
    return Case(m, lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), data, opt, healthy=lambda log: all(r.loss_ok and r.grad_ok for r in log))
