"""An encoder and a decoder trained by one optimizer; a value of sample 21 is zero where its logarithm is taken."""

# ruff: noqa: B007
# truth: op=log cause=DX203 samples=21
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
enc = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
dec = nn.Linear(8, 6)
opt = torch.optim.Adam(list(enc.parameters()) + list(dec.parameters()), lr=1e-3)
X = torch.rand(64, 6) + 0.1
X[21, 2] = 0.0
best = float("inf")
for epoch in range(2):
    epoch_loss = 0.0
    for batch in DataLoader(TensorDataset(X), batch_size=8, shuffle=True):
        x = batch[0]
        code = enc(x)
        out = dec(code).exp()
        loss = ((out.log() - torch.log(x)) ** 2).mean()  # BUG
        opt.zero_grad()
        loss.backward()
        opt.step()
        epoch_loss += loss.item() * len(x)
    if epoch_loss < best:
        best = epoch_loss
print("weights finite:", all(p.isfinite().all().item() for p in [*enc.parameters(), *dec.parameters()]))
