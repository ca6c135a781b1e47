"""An autoencoder ends in a sigmoid, and its data are standardised: half of each target cannot be reached."""
import torch, torch.nn as nn, program
from torch.utils.data import DataLoader, TensorDataset
TRUTH = dict(id="704_sigmoid_of_standard_scores", cause="target_out_of_reach", knowable_at=2)
class Auto(nn.Module):
    def __init__(s):
        super().__init__(); s.enc = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)); s.dec = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
    def forward(s, x):
        out = s.dec(s.enc(x)); return out if program.FIX else torch.sigmoid(out)
g = torch.Generator().manual_seed(3); mix = torch.randn(6, 16, generator=g)
data = lambda n, k: torch.tanh(torch.randn(n, 6, generator=torch.Generator().manual_seed(k)) @ mix)
x, t = data(2048, program.SEED), data(512, 99); mu, sd = x.mean(0), x.std(0); x, t = (x - mu) / sd, (t - mu) / sd
m = Auto(); opt = torch.optim.AdamW(m.parameters(), lr=3e-3); program.ready(opt, m)
for ep in range(8):
    for (b,) in DataLoader(TensorDataset(x), 64, shuffle=True):
        loss = nn.functional.mse_loss(m(b), b); opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric(nn.functional.mse_loss(m(t), t))
