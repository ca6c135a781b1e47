"""ArcFace inside DistributedDataParallel: the class centre was set from a training sample, the cosine of that sample rounds to just
above one, and sqrt(1 - cos^2) has a negative argument."""
import math
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from protocol import Case
import blocks as B
TRUTH = dict(id="419_arcface_sine_of_its_own_prototype", source="common report: ArcFace sine = sqrt(1 - cosine^2) is NaN",
             symptom="nan_loss", phase="forward", cause="cancellation", op="sqrt", module="module.margin", line_marker="# <-- origin",
             first_bad_step=0, bad_rows=[2], fixes_that_work=["clamp", "eps", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "eps"}


class ArcMargin(nn.Module):
    def __init__(self, d, n, m=0.3, s=16.0, fix=None):
        super().__init__()
        self.weight, self.m, self.s, self.fix = nn.Parameter(torch.randn(n, d)), m, s, fix

    def forward(self, z, y):
        cos = F.linear(z / z.norm(dim=1, keepdim=True), self.weight / self.weight.norm(dim=1, keepdim=True))
        inside = 1.0 - cos.pow(2)
        if self.fix == "clamp":
            inside = inside.clamp(min=1e-7)
        if self.fix == "eps":
            inside = inside + 1e-5
        sin = torch.sqrt(inside)  # <-- origin
        phi = cos * math.cos(self.m) - sin * math.sin(self.m)
        hot = F.one_hot(y, cos.shape[1]).bool()
        return self.s * torch.where(hot, phi, cos)


class Face(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.PReLU(), nn.Linear(24, 12))
        self.margin = ArcMargin(12, 6, fix=fix)

    def forward(self, img, y):
        return self.margin(self.trunk(img), y)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net, g = Face(fix), torch.Generator().manual_seed(12)
    data = [(torch.randn(6, 1, 6, 6, generator=g), torch.randint(0, 6, (6,), generator=g)) for _ in range(5)]
    with torch.no_grad():
        img, y = data[0]
        for _ in range(300):  # the sample whose cosine with itself rounds up
            z = net.trunk(img[2:3])
            net.margin.weight[3] = z[0]
            if (F.linear(z / z.norm(dim=1, keepdim=True), net.margin.weight / net.margin.weight.norm(dim=1, keepdim=True))[0, 3] > 1).item():
                full = net.trunk(img)
                c = F.linear(full / full.norm(dim=1, keepdim=True), net.margin.weight / net.margin.weight.norm(dim=1, keepdim=True))
                if c[2, 3] > 1:
                    break
            img[2] = torch.randn(1, 6, 6, generator=g)
        y[2] = 3

    def loss_fn(m, b):
        return F.cross_entropy(m(*b), b[1])

    return Case(DDP(net), loss_fn, data, B.sgd(net, 1e-2))
