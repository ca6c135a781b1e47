"""Small CNN on chest x-ray crops (synthetic stand-in), with augmentation."""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self, n=320, size=16, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.images = torch.rand(n, 1, size, size, generator=g)
        self.labels = (self.images[:, 0, :8].mean((1, 2)) > self.images[:, 0, 8:].mean((1, 2))).long()
        self.images[173] = 0.0  # a crop that fell outside of the plate
        self.rng = random.Random(seed)

    def __len__(self):
        return len(self.images)

    def standardise(self, image):
        mean, std = image.mean(), image.std()
        return (image - mean) / std

    def __getitem__(self, i):
        image = self.images[i]
        if i % 3 == 0:
            image = image.flip(-1)
        image = image + 0.0
        return self.standardise(image), self.labels[i]


class Net(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.block = nn.Sequential(nn.GroupNorm(3, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
        self.head = nn.Linear(width * 4, 2)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.block(x)
        x = F.adaptive_avg_pool2d(F.relu(x), 2)
        return self.head(x.flatten(1))


class Trainer:
    def __init__(self, model, dataset, lr=3e-3, batch_size=16, epochs=2):
        self.model = model
        self.loader = DataLoader(dataset, batch_size, shuffle=True, generator=torch.Generator().manual_seed(1))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
        total = epochs * len(self.loader)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / total)))
        self.epochs = epochs
        self.history = []

    def train_step(self, batch):
        images, labels = batch
        self.optimizer.zero_grad()
        logits = self.model(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def fit(self):
        for epoch in range(self.epochs):
            for batch in self.loader:
                self.history.append(self.train_step(batch))
            print(f"epoch {epoch} loss {sum(self.history[-len(self.loader):]) / len(self.loader):.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = Trainer(Net(), Crops())
    trainer.fit()
    state = trainer.model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
