"""Segmentation with per-class IoU: absent classes give NaN and are ignored by nanmean."""
import hashlib
import torch
from torch import nn

C = 6


def iou(pred, y):
    out = []
    for c in range(C):
        inter = ((pred == c) & (y == c)).sum()
        union = ((pred == c) | (y == c)).sum()
        out.append(inter / union)  # 0 / 0 if the class does not occur
    return torch.stack(out)


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, C, 1))
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
scores = []
for step in range(120):
    top = int(torch.randint(2, C + 1, (1,)))
    y = torch.randint(0, top, (4, 8, 8))
    x = torch.stack([y.float() / C, y.float().sin()], 1) + 0.1 * torch.randn(4, 2, 8, 8)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        scores.append(iou(logits.argmax(1), y))
    if step % 20 == 0:
        print(f"{step}: loss {loss.item():.4f} mIoU {torch.nanmean(torch.stack(scores[-10:])):.4f} worst {torch.nanmedian(scores[-1]):.3f}")
print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in model.state_dict().values())).hexdigest())
