"""Lesion segmentation with a small U-Net, gradient accumulation and per-image class balancing."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Lesions(Dataset):
    def __init__(self, n=320, size=16):
        g = torch.Generator().manual_seed(3)
        self.images = torch.randn(n, 1, size, size, generator=g) * 0.3
        self.masks = torch.zeros(n, 1, size, size)
        for i in range(n):
            r, c = torch.randint(2, size - 6, (2,), generator=g).tolist()
            h, w = torch.randint(2, 5, (2,), generator=g).tolist()
            if i == 201:  # a healthy patient
                continue
            self.masks[i, 0, r:r + h, c:c + w] = 1
            self.images[i, 0, r:r + h, c:c + w] += 1.5

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i], "mask": self.masks[i], "id": i}


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.enc1, self.enc2 = block(1, c), block(c, 2 * c)
        self.mid = block(2 * c, 2 * c)
        self.dec2, self.dec1 = block(4 * c, c), block(2 * c, c)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        m = self.mid(F.max_pool2d(b, 2))
        d = self.dec2(torch.cat([F.interpolate(m, scale_factor=2), b], 1))
        d = self.dec1(torch.cat([F.interpolate(d, scale_factor=2), a], 1))
        return self.out(d)


def balanced_bce(logits, mask):
    positives = mask.sum(dim=(1, 2, 3), keepdim=True)
    pos_weight = (mask[0].numel() - positives) / positives
    loss = F.binary_cross_entropy_with_logits(logits, mask, reduction="none")
    weight = mask * pos_weight + (1 - mask)
    return (loss * weight).mean()


ACCUMULATE = 2
torch.manual_seed(0)
model = UNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(Lesions(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(11))
updates = 0
for epoch in range(2):
    for i, batch in enumerate(loader):
        loss = balanced_bce(model(batch["image"]), batch["mask"]) / ACCUMULATE
        loss.backward()
        if (i + 1) % ACCUMULATE == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            updates += 1
            if updates % 10 == 0:
                print(f"update {updates} loss {loss.item() * ACCUMULATE:.4f}")
print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
