"""A convolutional net in fp16 with a group norm of its own: eps=1e-8 is zero in fp16, and a blank image has no variance."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="402_group_norm_eps_vanishes_in_half", source="common report: eps below the fp16 subnormals in hand-written normalisation",
             symptom="nan_loss", phase="forward", cause="fp16_underflow", op="rsqrt", op_also=["mul"], module="stem.1", line_marker="# <-- origin",
             first_bad_step=3, bad_rows=[3], fixes_that_work=["eps", "fp32", "bf16", "upcast_module", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "fp32", "bf16", "upcast_module"}


class GN(nn.Module):
    def __init__(self, c, groups=2, eps=1e-8, up=False):
        super().__init__()
        self.g, self.eps, self.up = groups, eps, up
        self.w, self.b = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))

    def forward(self, x):
        n, c, h, w = x.shape
        y = x.reshape(n, self.g, -1)
        if self.up:
            y = y.float()
        mu = y.mean(-1, keepdim=True)
        d = y - mu
        inv = torch.rsqrt((d * d).mean(-1, keepdim=True) + self.eps)  # <-- origin
        y = (d * inv).reshape(n, c, h, w).to(x.dtype)
        return y * self.w[:, None, None] + self.b[:, None, None]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    kw = dict(eps=2e-3 if fix == "eps" else 1e-8, up=fix == "upcast_module")
    net = nn.Sequential()
    net.add_module("stem", nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="replicate", bias=False), GN(4, **kw), nn.ReLU()))
    net.add_module("body", nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    net.add_module("head", nn.Linear(8, 3))
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(fix, torch.float16)
    net.to(dtype)
    g = torch.Generator().manual_seed(11)
    data = [(torch.rand(6, 1, 8, 8, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(7)]
    data[3][0][3] = 0.0

    def step(net, batch):
        images, labels = batch
        return F.cross_entropy(net(images.to(dtype)).float(), labels)

    return Case(net, step, data, B.sgd(net, 1e-2))
