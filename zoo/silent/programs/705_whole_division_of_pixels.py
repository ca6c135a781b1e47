"""Pixels are bytes and are divided by 255 with // : all inputs are 0 (or 1 where a pixel is full)."""
import torch, torch.nn as nn, program
from torch.utils.data import DataLoader, Dataset
TRUTH = dict(id="705_whole_division_of_pixels", cause="constant_inputs", knowable_at=0)
g = torch.Generator().manual_seed(5); proto = torch.rand(5, 1, 8, 8, generator=g) * 180
def images(n, k):
    r = torch.Generator().manual_seed(k); y = torch.randint(0, 5, (n,), generator=r)
    return (proto[y] + 60 * torch.rand(n, 1, 8, 8, generator=r)).clamp(0, 254).to(torch.uint8), y
class Pictures(Dataset):
    def __init__(s, n, k): s.x, s.y = images(n, k)
    def __len__(s): return len(s.y)
    def __getitem__(s, i): return (s.x[i] / 255 if program.FIX else (s.x[i] // 255).float()), s.y[i]
m = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5))
opt = torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9); program.ready(opt, m)
for ep in range(4):
    m.train()
    for x, y in DataLoader(Pictures(1024, program.SEED), 16, shuffle=True):
        opt.zero_grad(); nn.functional.cross_entropy(m(x), y).backward(); opt.step()
m.eval(); bad = n = 0
with torch.no_grad():
    for x, y in DataLoader(Pictures(512, 99), 64): bad += (m(x).argmax(1) != y).sum(); n += len(y)
program.metric(bad / n)
