"""Single-object detector: features to one box, complete-IoU loss."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from x02_box_losses import ciou_loss

EPOCHS = 2
BATCH = 8


def make_data(n=200):
    g = torch.Generator().manual_seed(4)
    centre = torch.rand(n, 2, generator=g) * 0.6 + 0.2
    size = torch.rand(n, 2, generator=g) * 0.2 + 0.1
    size[91] = 0.0  # a click without a drag in the labelling tool
    boxes = torch.cat([centre - size / 2, centre + size / 2], dim=1)
    boxes[91, 2:] = boxes[91, :2]
    features = torch.cat([boxes, torch.randn(n, 4, generator=g) * 0.05], dim=1) @ torch.randn(8, 16, generator=g)
    return TensorDataset(features, boxes)


class BoxHead(nn.Module):
    def __init__(self, d=16, hidden=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.centre = nn.Linear(hidden, 2)
        self.size = nn.Linear(hidden, 2)

    def forward(self, x):
        h = self.trunk(x)
        c = self.centre(h).sigmoid()
        s = self.size(h).sigmoid() * 0.5 + 1e-3
        return torch.cat([c - s / 2, c + s / 2], dim=1)


def train_one_epoch(model, loader, optimizer, epoch):
    model.train()
    total = 0.0
    for step, (x, boxes) in enumerate(loader):
        pred = model(x)
        l1 = (pred - boxes).abs().mean()
        loss = 2.0 * ciou_loss(pred, boxes) + 5.0 * l1
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
        if step % 10 == 0:
            print(f"[{epoch}:{step}] loss {loss.item():.4f} l1 {l1.item():.4f}")
    return total / len(loader)


def main():
    torch.manual_seed(2)
    loader = DataLoader(make_data(), batch_size=BATCH, shuffle=False)
    model = BoxHead()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(EPOCHS):
        print("mean", train_one_epoch(model, loader, optimizer, epoch))
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
