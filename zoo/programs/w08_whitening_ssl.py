"""Self-supervised video frames with ZCA whitening of the embeddings (W-MSE)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    """each clip is 16 consecutive frames of one camera"""

    def __init__(self, n=120):
        g = torch.Generator().manual_seed(9)
        base = torch.randn(n, 1, 12, generator=g)
        self.frames = base + torch.randn(n, 16, 12, generator=g)
        self.frames[77] = 0.0  # lens cap

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, i):
        return self.frames[i]


def whiten(z, eps=1e-3):
    z = z - z.mean(0)
    cov = z.T @ z / (len(z) - 1) + eps * torch.eye(z.shape[1])
    values, vectors = torch.linalg.eigh(cov)
    return z @ vectors @ torch.diag(values.rsqrt()) @ vectors.T


class SSL(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 6))

    def forward(self, a, b):
        return whiten(self.backbone(a)), whiten(self.backbone(b))


def augment(frames, strength=0.1):
    return frames * (1 + strength * torch.randn(1, frames.shape[1]))


torch.manual_seed(0)
model = SSL()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(Clips(), batch_size=None, shuffle=True)
for step, frames in enumerate(loader):
    a, b = model(augment(frames), augment(frames))
    loss = (a - b).pow(2).sum(1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
