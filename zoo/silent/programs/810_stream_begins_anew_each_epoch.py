"""An epoch is 12 batches of a long stream, and each epoch begins the stream at its first sample: 97 % of the data are never seen."""
import torch, torch.nn as nn, program
from itertools import islice
from torch.utils.data import DataLoader, IterableDataset
TRUTH = dict(id="810_stream_begins_anew_each_epoch", cause="repeated_batch", knowable_at=12)
x, y = program.blobs(8192, program.SEED, k=6, noise=1.5); tx, ty = program.blobs(1024, 99, k=6, noise=1.5)
class Stream(IterableDataset):
    def __iter__(s): yield from zip(x, y)
loader = DataLoader(Stream(), 16); m = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 6)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
stream = iter(loader)
for epoch in range(30):
    for xb, yb in islice(stream if program.FIX else loader, 12):
        loss = nn.functional.cross_entropy(m(xb), yb); opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric(nn.functional.cross_entropy(m(tx), ty))
