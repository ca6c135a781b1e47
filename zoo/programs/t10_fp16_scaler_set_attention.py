"""Set classification with hand-written attention in float16 autocast and a GradScaler."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Sets(Dataset):
    def __init__(self, n=180):
        g = torch.Generator().manual_seed(77)
        self.x = torch.randn(n, 6, 16, generator=g)
        self.y = (self.x[:, :, 0].mean(1) > 0).long()
        self.x[122] *= 350.0  # this detector reports in millivolt

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class SetAttention(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, d), nn.Linear(16, d), nn.Linear(16, d)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = torch.bmm(q, k.transpose(1, 2))
        return torch.bmm(torch.softmax(scores / 32 ** 0.5, dim=-1), v)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = SetAttention()
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.attention(x).mean(1))


def train_epoch(model, loader, opt, scaler):
    total, n = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
            loss = nn.functional.cross_entropy(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        total, n = total + loss.item(), n + 1
    return total / n


torch.manual_seed(10)
model = Classifier()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
loader = DataLoader(Sets(), batch_size=12)
for epoch in range(3):
    print(epoch, train_epoch(model, loader, opt, scaler), scaler.get_scale())
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
