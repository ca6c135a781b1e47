"""__getitem__ writes each sample into one buffer and returns it: when the batch is stacked, all of its rows are the last sample."""
import torch, torch.nn as nn, program
from torch.utils.data import DataLoader, Dataset
TRUTH = dict(id="812_data_set_returns_its_own_buffer", cause="aliased_samples", knowable_at=0)
class Rows(Dataset):
    def __init__(s, n, k): s.x, s.y = program.blobs(n, k, k=5); s.buffer = torch.empty(12)
    def __len__(s): return len(s.y)
    def __getitem__(s, i):
        s.buffer.copy_(s.x[i]); return (s.buffer.clone() if program.FIX else s.buffer), s.y[i]
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 5)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
for epoch in range(5):
    for xb, yb in DataLoader(Rows(1024, program.SEED), 32, shuffle=True):
        loss = nn.functional.cross_entropy(m(xb), yb); opt.zero_grad(); loss.backward(); opt.step()
tx, ty = program.blobs(1024, 99, k=5)
with torch.no_grad(): program.metric((m(tx).argmax(1) != ty).float().mean())
