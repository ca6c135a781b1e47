"""A segmentation net with a hand-written dice loss; an empty mask and an empty prediction give 0/0."""
# ruff: noqa: B007
# truth: op=div cause=DX201 samples=8

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class DiceLoss(nn.Module):
    def forward(self, logits, target):
        pred = torch.relu(torch.tanh(logits)).flatten(1)
        target = target.flatten(1)
        inter = (pred * target).sum(1)
        dice = 2 * inter / (pred.sum(1) + target.sum(1))  # BUG
        return 1 - dice.mean()


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.up = nn.Conv2d(4, 1, 3, padding=1, bias=False)

    def forward(self, x):
        return self.up(torch.relu(self.down(x)))


class Config:
    epochs = 2
    lr = 1e-3
    device = "cpu"


class Engine:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = UNet().to(cfg.device)
        self.criterion = {"dice": DiceLoss(), "bce": nn.BCEWithLogitsLoss()}
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.state = {"step": 0, "loss": None}

    def train_step(self, batch):
        image, mask = (t.to(self.cfg.device) for t in batch)
        self.optimizer.zero_grad()
        logits = self.model(image)
        self.state["loss"] = self.criterion["dice"](logits, mask) + 0.5 * self.criterion["bce"](logits, mask)
        self.state["loss"].backward()
        self.optimizer.step()
        self.state["step"] += 1

    def fit(self, loader):
        for epoch in range(self.cfg.epochs):
            for batch in loader:
                try:
                    self.train_step(batch)
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise


torch.manual_seed(0)
images = torch.rand(24, 1, 8, 8)
masks = (images > 0.5).float()
images[8], masks[8] = 0, 0
engine = Engine(Config())
engine.fit(DataLoader(TensorDataset(images, masks), batch_size=4))
print(engine.state["step"], "steps")
print("weights finite:", all(p.isfinite().all().item() for p in engine.model.parameters()))
