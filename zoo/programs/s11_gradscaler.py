"""Mixed precision on the CPU with GradScaler: the scaler drops the bad step by itself, and nobody notices."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)
N = 480
X = torch.randn(N, 10)
Y = (X[:, :1] * X[:, 1:2] + X[:, 2:3]).contiguous()
valid_from = 400
X[229, 4] = 5e4  # a counter that wrapped around

model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)


def train_one_epoch(epoch):
    model.train()
    total = 0.0
    for i in range(0, valid_from, 16):
        x, y = X[i:i + 16], Y[i:i + 16]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(x)
            residual = pred - y.half()
            loss = (residual * residual).mean()  # BUG
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        if torch.isfinite(loss):
            total += loss.item()
    return total / (valid_from // 16)


@torch.no_grad()
def evaluate():
    model.eval()
    return F.mse_loss(model(X[valid_from:]), Y[valid_from:]).item()


for epoch in range(4):
    print(f"epoch {epoch} train {train_one_epoch(epoch):.4f} valid {evaluate():.4f} scale {scaler.get_scale():.1f}")
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
