"""Focal loss with gamma = 0.5: (1 - pt) ** 0.5 at a sample of which the model is entirely sure (pt == 1): value 0, derivative inf * 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="614_focal_loss_with_gamma_one_half", source="https://github.com/kornia/kornia/issues/918",
             symptom="nan_grad", phase="backward", cause="sqrt_grad_at_zero", op="pow", op_also=["sqrt"], module="head.focal", line_marker="# <-- origin", first_bad_step=6, bad_rows=[5],
             fixes_that_work=["eps", "clamp", "gamma_two", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp", "gamma_two"}


class Focal(nn.Module):
    def __init__(self, gamma, fix):
        super().__init__()
        self.gamma, self.fix = gamma, fix

    def forward(self, logits, target):
        ce = F.cross_entropy(logits, target, reduction="none")
        hard = 1 - torch.exp(-ce)
        if self.fix == "eps":
            hard = hard + 1e-6
        elif self.fix == "clamp":
            hard = hard.clamp(min=1e-6)
        weight = hard ** self.gamma  # <-- origin
        return (weight * ce).mean()


class Head(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.cls = nn.Linear(16, 4)
        self.focal = Focal(2.0 if fix == "gamma_two" else 0.5, fix)

    def forward(self, h, target):
        return self.focal(self.cls(h), target)


class Classifier(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(9, 16), nn.LeakyReLU())
        self.head = Head(fix)

    def forward(self, x, target):  # the loss is computed inside, as in Hugging Face models
        return self.head(self.backbone(x), target)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Classifier(fix), torch.Generator().manual_seed(21)
    data = [dict(x=torch.randn(7, 9, generator=g), target=torch.randint(0, 4, (7,), generator=g)) for _ in range(10)]
    data[6]["x"][5] *= 300.0
    with torch.no_grad():
        data[6]["target"][5] = m.head.cls(m.backbone(data[6]["x"][5:6])).argmax()
    return Case(m, lambda m, b: m(**b), data, torch.optim.AdamW(m.parameters(), lr=1e-3))
