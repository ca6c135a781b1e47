"""Healthy: the same few batches are gone through in a fixed order for 40 epochs; the first two epochs are cut short to see that the program runs."""
import torch, torch.nn as nn, program
from torch.utils.data import DataLoader, TensorDataset
TRUTH = dict(id="884_control_short_first_epochs", cause="none", knowable_at=-1)
x, y = program.blobs(160, program.SEED); loader = DataLoader(TensorDataset(x, y), 16)
m = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)); opt = torch.optim.AdamW(m.parameters(), lr=2e-3, weight_decay=0.1); program.ready(opt, m)
for epoch in range(40):
    for n, (xb, yb) in enumerate(loader):
        if epoch < 2 and n >= 3: break
        loss = nn.functional.cross_entropy(m(xb), yb); opt.zero_grad(); loss.backward(); opt.step()
program.metric(loss)
