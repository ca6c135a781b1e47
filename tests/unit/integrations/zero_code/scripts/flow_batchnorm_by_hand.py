"""A hand-made normalisation with rsqrt and no eps meets a constant column."""
# truth: op=rsqrt cause=DX201|DX301 samples=any

import torch
from torch import nn

torch.manual_seed(0)


class Standardise(nn.Module):
    def forward(self, x):
        centred = x - x.mean(0)
        return centred * centred.pow(2).mean(0).rsqrt()  # BUG


model = nn.Sequential(Standardise(), nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.SmoothL1Loss()


def get_batch(split, step):
    x = torch.randn(16, 5)
    if split == "train" and step == 12:
        x[:, 3] = 1.0
    return x, x.sum(1, keepdim=True)


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {split: criterion(model(x), y).item() for split in ("train", "val") for x, y in [get_batch(split, -1)]}
    model.train()
    return out


for step in range(30):
    if step % 10 == 0:
        print(step, estimate_loss())
    xb, yb = get_batch("train", step)
    loss = criterion(model(xb), yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
