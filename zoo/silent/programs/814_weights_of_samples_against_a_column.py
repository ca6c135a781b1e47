"""Sample weights of shape (B,) times losses of shape (B, 1): each loss is weighted with all weights, so with none."""
import torch, torch.nn as nn, program
TRUTH = dict(id="814_weights_of_samples_against_a_column", cause="broadcasting_loss_shape", knowable_at=0)
w = torch.randn(8, 1, generator=torch.Generator().manual_seed(2)); m = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
for k in range(500):
    x = torch.randn(64, 8); y = x @ w; bad = torch.rand(64) < 0.4; y[bad] = y[bad] + 15; weight = torch.where(bad, 0.0, 1.0)
    each = (m(x) - y).pow(2); loss = (each * (weight[:, None] if program.FIX else weight)).mean()
    opt.zero_grad(); loss.backward(); opt.step()
x = torch.randn(1024, 8)
with torch.no_grad(): program.metric((m(x) - x @ w).pow(2).mean())
