"""WeightedRandomSampler gets one weight a class, not one a sample: only the first samples of the set are ever drawn."""
import torch, torch.nn as nn, program
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
TRUTH = dict(id="706_sampler_weighs_classes", cause="repeated_batch", knowable_at=-1)
x, y = program.blobs(1500, program.SEED, k=6, noise=1.5); tx, ty = program.blobs(1024, 99, k=6, noise=1.5)
w = 1 / torch.bincount(y, minlength=6).float()
sampler = WeightedRandomSampler(w[y] if program.FIX else w, num_samples=len(y))
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 6)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
for ep in range(4):
    for xb, yb in DataLoader(TensorDataset(x, y), 32, sampler=sampler):
        opt.zero_grad(); nn.functional.cross_entropy(m(xb), yb).backward(); opt.step()
with torch.no_grad(): program.metric(nn.functional.cross_entropy(m(tx), ty))
