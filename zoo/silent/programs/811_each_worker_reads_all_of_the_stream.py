"""An iterable data set is read by three workers and none of them takes a part: each sample is delivered three times in an epoch."""
import torch, torch.nn as nn, program
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
TRUTH = dict(id="811_each_worker_reads_all_of_the_stream", cause="repeated_batch", knowable_at=2)
x, y = program.blobs(1536, program.SEED, k=6, noise=2.0); tx, ty = program.blobs(1024, 99, k=6, noise=2.0)
class Stream(IterableDataset):
    def __iter__(s):
        one = get_worker_info(); begin, step = (one.id, one.num_workers) if program.FIX else (0, 1)
        for i in range(begin, 1536, step): yield x[i], y[i]
m = nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 6)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m); k = 0
for epoch in range(3):
    for xb, yb in DataLoader(Stream(), 16, num_workers=3):
        if k == 96: break
        k += 1; loss = nn.functional.cross_entropy(m(xb), yb); opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric(nn.functional.cross_entropy(m(tx), ty))
