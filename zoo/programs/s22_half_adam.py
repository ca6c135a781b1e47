"""A classifier cast to half with .half() and trained with plain Adam to save memory."""
import torch
import torch.nn as nn

torch.manual_seed(6)
DTYPE = torch.float16


class Bottleneck(nn.Module):
    def __init__(self, d, r):
        super().__init__()
        self.down = nn.Linear(d, r)
        self.up = nn.Linear(r, d)

    def forward(self, x):
        return x + self.up(torch.relu(self.down(x)))


model = nn.Sequential(nn.Linear(20, 32), Bottleneck(32, 8), nn.LayerNorm(32), nn.Linear(32, 4)).to(DTYPE)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)


def batch():
    x = torch.randn(24, 20)
    x[:, 13] = 0.0  # a feature that is constant in this data set
    y = x[:, :4].argmax(1)
    return x.to(DTYPE), y


def train_step(x, y):
    loss = nn.functional.cross_entropy(model(x).float(), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()  # BUG
    return loss.item()


history = []
for step in range(40):
    history.append(train_step(*batch()))
    if step % 10 == 0:
        print("step", step, "loss", history[-1])
torch_ok = all(torch.isfinite(p).all() for p in model.parameters())
print("FINITE" if torch_ok else "POISONED")
