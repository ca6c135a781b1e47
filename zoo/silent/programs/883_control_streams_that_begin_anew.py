"""Healthy: a stream draws anew whenever it is begun and is cut after 12 batches; two workers share a second one; a fixed validation set is cut after 4 each time."""
import torch, torch.nn as nn, program
from itertools import islice
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info
TRUTH = dict(id="883_control_streams_that_begin_anew", cause="none", knowable_at=-1)
x, y = program.blobs(512, program.SEED)
class Drawn(IterableDataset):
    def __iter__(s):
        while True: i = int(torch.randint(0, 512, ())); yield x[i] + 0.1 * torch.randn(12), y[i]
class Shared(IterableDataset):
    def __iter__(s):
        one = get_worker_info()
        for i in range(one.id, 512, one.num_workers): yield x[i], y[i]
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
drawn, check = DataLoader(Drawn(), 16), DataLoader(TensorDataset(x, y), 16)
for epoch in range(8):
    m.train()
    for xb, yb in islice(drawn, 12): loss = nn.functional.cross_entropy(m(xb), yb); opt.zero_grad(); loss.backward(); opt.step()
    m.eval()
    with torch.no_grad(): v = sum(nn.functional.cross_entropy(m(a), b) for a, b in islice(check, 4)) / 4
m.train()
for xb, yb in DataLoader(Shared(), 16, num_workers=2): loss = nn.functional.cross_entropy(m(xb), yb); opt.zero_grad(); loss.backward(); opt.step()
program.metric(v)
