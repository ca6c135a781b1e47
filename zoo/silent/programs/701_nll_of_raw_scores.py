"""NLLLoss on raw scores: the log_softmax is missing. The loss falls without limit."""
import torch, torch.nn as nn, program
from torch.utils.data import DataLoader, TensorDataset
TRUTH = dict(id="701_nll_of_raw_scores", cause="loss_without_minimum", knowable_at=0)
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4))
x, y = program.blobs(1024, program.SEED, noise=1.5); tx, ty = program.blobs(1024, 99, noise=1.5)
opt = torch.optim.SGD(m.parameters(), lr=0.05); program.ready(opt, m); crit = nn.NLLLoss()
for ep in range(4):
    for xb, yb in DataLoader(TensorDataset(x, y), 16, shuffle=True):
        out = m(xb)
        loss = crit(out.log_softmax(1) if program.FIX else out, yb)
        opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(m.parameters(), 1.0); opt.step()
    print(ep, loss.item())
with torch.no_grad(): program.metric((m(tx).argmax(1) != ty).float().mean())
