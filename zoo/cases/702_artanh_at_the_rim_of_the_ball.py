"""Hyperbolic image embeddings: features go onto the Poincare ball by tanh and the classifier takes artanh by two log1p, without the
projection that keeps points inside. The features of one bright picture are so long that tanh is exactly 1."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="702_artanh_at_the_rim_of_the_ball", source="https://github.com/leymir/hyperbolic-image-embeddings/issues/13",
             symptom="inf_loss", phase="forward", cause="log_zero", op="log1p", module="heads.hyp.logmap", line_marker="# <-- origin", first_bad_step=6, bad_rows=[3],
             fixes_that_work=["clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp"}


class ToBall(nn.Module):
    def forward(self, x):
        n = x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return torch.tanh(n) * x / n


class LogMap(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.fix = fix

    def forward(self, p):
        n = p.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        if self.fix == "clamp":
            n = n.clamp(max=1 - 1e-3)
        depth = 0.5 * (torch.log1p(n) - torch.log1p(-n))  # <-- origin
        return depth, p / n


class HypHead(nn.Module):
    def __init__(self, d, k, fix):
        super().__init__()
        self.to_ball, self.logmap = ToBall(), LogMap(fix)
        self.dirs = nn.Parameter(torch.randn(k, d) * 0.3)

    def forward(self, h):
        depth, direction = self.logmap(self.to_ball(h))
        cos = direction @ F.normalize(self.dirs, dim=-1).T
        return depth + cos, depth * cos


class Net(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.heads = nn.ModuleDict({"hyp": HypHead(16, 5, fix)})

    def forward(self, img):
        return self.heads["hyp"](self.stem(img))


def loss_fn(m, b):
    spread, _ = m(b["img"])
    pos = spread.gather(1, b["cls"][:, None]).squeeze(1)
    return (b["depth"] - pos).abs().mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(fix), torch.Generator().manual_seed(72)
    data = [dict(img=torch.rand(5, 1, 8, 8, generator=g), cls=torch.randint(0, 5, (5,), generator=g), depth=torch.rand(5, generator=g)) for _ in range(9)]
    data[6]["img"][3] *= 255.0  # read as bytes, not divided
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9))
