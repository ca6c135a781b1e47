"""Mixup targets and KL written by hand. A pair of images of the same class mixes to a one-hot target: 0 * log 0."""
import torch
import torch.nn as nn
from protocol import Case

TRUTH = dict(id="507_soft_label_kl_by_hand", source="written for this set, after a kind of report often seen: soft label kl by hand",
             symptom="nan_loss", phase="loss", cause="log_zero", op="log", op_also=["mul", "sub"], module=None, line_marker="# <-- origin",
             first_bad_step=2, bad_rows=[4], fixes_that_work=["xlogy", "eps", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "zero_nan_grads", "lr_down"])
FIXES = {"xlogy", "eps"}


class SmallCNN(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Linear(6 * 9, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = SmallCNN()

    def kl(model, batch):
        images, target = batch
        logq = model(images).log_softmax(1)
        if fix == "xlogy":
            return (torch.xlogy(target, target) - target * logq).sum(1).mean()
        t = target + 1e-8 if fix == "eps" else target
        logp = t.log()  # <-- origin
        return (target * (logp - logq)).sum(1).mean()

    data = []
    for step in range(7):
        x = torch.randn(6, 1, 8, 8)
        target = torch.softmax(torch.randn(6, 5), 1)
        if step == 2:
            target[4] = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0])
        data.append([x, target])
    return Case(model, kl, data, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True))
