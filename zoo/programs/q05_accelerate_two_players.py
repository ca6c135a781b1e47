"""Accelerate with two models and two optimizers: an encoder and an adversary that should not be able to tell the source. Their losses go up and down."""
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)

acc = Accelerator(cpu=True)
torch.manual_seed(2)
g = torch.Generator().manual_seed(2)
x = torch.randn(600, 8, generator=g)
source = (torch.rand(600, generator=g) < 0.5).long()
x[source == 1, :4] += 3
y = (x[:, 5] > 0).long()
enc = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 6))
head, adv = nn.Linear(6, 2), nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
main_opt = torch.optim.Adam(list(enc.parameters()) + list(head.parameters()), lr=3e-3)
adv_opt = torch.optim.Adam(adv.parameters(), lr=2e-2)
enc, head, adv, main_opt, adv_opt, loader = acc.prepare(enc, head, adv, main_opt, adv_opt, DataLoader(TensorDataset(x, y, source), batch_size=30))
high = 0.0
for epoch in range(5):
    for xb, yb, sb in loader:
        for _ in range(3):
            a = F.cross_entropy(adv(enc(xb).detach()), sb)
            adv_opt.zero_grad()
            acc.backward(a)
            adv_opt.step()
        z = enc(xb)
        fool = F.cross_entropy(adv(z), 1 - sb)
        loss = F.cross_entropy(head(z), yb) + 5.0 * fool
        main_opt.zero_grad()
        acc.backward(loss)
        main_opt.step()
        high = max(high, loss.item())
    acc.print("epoch", epoch, "adversary", round(a.item(), 3), "main", round(loss.item(), 3), "highest", round(high, 2))
models = [acc.unwrap_model(m) for m in (enc, head, adv)]
acc.print("FINITE" if all(torch.isfinite(p).all() for m in models for p in m.parameters()) else "POISONED")
acc.print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for m in models for p in m.parameters())).hexdigest())
