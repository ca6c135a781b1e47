# Segmentation with soft Dice and an edge term. Everything at module level, as a quick experiment.
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
N, SIZE, BATCH = 96, 20, 6

g = torch.Generator().manual_seed(3)
yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
cx, cy = torch.randint(5, 15, (N, 1, 1), generator=g), torch.randint(5, 15, (N, 1, 1), generator=g)
masks = (((xx - cx) ** 2 + (yy - cy) ** 2) < 20).float()
images = masks + 0.3 * torch.randn(N, SIZE, SIZE, generator=g)
images[64] = 0.0  # slice without tissue
masks[64] = 0.0


class UNetish(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down = nn.Conv2d(1, c, 3, padding=1, padding_mode="replicate")
        self.mid = nn.Conv2d(c, c, 3, padding=1, padding_mode="replicate")
        self.out = nn.Conv2d(2 * c, 1, 1)

    def forward(self, x):
        a = F.relu(self.down(x))
        b = F.relu(self.mid(F.avg_pool2d(a, 2)))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.out(torch.cat([a, b], 1)).sigmoid().squeeze(1)


def soft_dice(p, m, smooth=1.0):
    inter = (p * m).sum((1, 2))
    return 1 - ((2 * inter + smooth) / (p.sum((1, 2)) + m.sum((1, 2)) + smooth)).mean()


def edges(p):
    dx = p[:, 1:, 1:] - p[:, 1:, :-1]
    dy = p[:, 1:, 1:] - p[:, :-1, 1:]
    return torch.sqrt(dx * dx + dy * dy)


net = UNetish()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 16, gamma=0.5)
for epoch in range(2):
    running = 0.0
    for start in range(0, N, BATCH):
        image = images[start : start + BATCH].unsqueeze(1)
        mask = masks[start : start + BATCH]
        prob = net(image)
        dice = soft_dice(prob, mask)
        with torch.no_grad():
            target_edges = edges(mask)
        edge = (edges(prob) - target_edges).abs().mean()
        loss = dice + 0.2 * edge
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
    print(f"epoch {epoch}: {running / (N // BATCH):.4f} lr {scheduler.get_last_lr()[0]:.5f}")
state = net.state_dict()
print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
