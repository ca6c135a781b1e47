"""One-box detector with the CIoU loss; the annotation tool saved a click as a box."""
import math

import torch
import torch.nn as nn


class Boxes(torch.utils.data.Dataset):
    def __init__(self, n=192):
        g = torch.Generator().manual_seed(14)
        self.images = torch.rand(n, 1, 16, 16, generator=g)
        xy = torch.rand(n, 2, generator=g) * 0.5
        wh = torch.rand(n, 2, generator=g) * 0.4 + 0.1
        self.boxes = torch.cat([xy, xy + wh], 1)
        self.boxes[118, 2:] = self.boxes[118, :2]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i], "box": self.boxes[i]}


def ciou(pred, true):
    lt, rb = torch.max(pred[:, :2], true[:, :2]), torch.min(pred[:, 2:], true[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    pw, ph = (pred[:, 2:] - pred[:, :2]).unbind(1)
    tw, th = (true[:, 2:] - true[:, :2]).unbind(1)
    iou = inter / (pw * ph + tw * th - inter + 1e-7)
    hull = torch.max(pred[:, 2:], true[:, 2:]) - torch.min(pred[:, :2], true[:, :2])
    centre = (pred[:, :2] + pred[:, 2:] - true[:, :2] - true[:, 2:]).pow(2).sum(1) / 4
    aspect_true = torch.atan(tw / th)
    aspect_pred = torch.atan(pw / ph)
    v = 4 / math.pi**2 * (aspect_true - aspect_pred).pow(2)
    with torch.no_grad():
        alpha = v / (1 - iou + v + 1e-7)
    return 1 - iou + centre / (hull.pow(2).sum(1) + 1e-7) + alpha * v


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(256, 4)

    def forward(self, x):
        xy, wh = self.head(self.body(x)).sigmoid().chunk(2, 1)
        return torch.cat([xy, xy + wh + 0.01], 1)


def one_epoch(model, loader, opt, sched):
    model.train()
    for batch in loader:
        loss = ciou(model(batch["image"]), batch["box"]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(Boxes(), 16, shuffle=True)
    model = Detector()
    opt = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=36)
    for epoch in range(3):
        print(epoch, one_epoch(model, loader, opt, sched))
    state = [*model.parameters(), *model.buffers()]
    print("FINITE" if all(torch.isfinite(t).all() for t in state) else "POISONED")


main()
