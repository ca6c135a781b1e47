"""Healthy: two terms are balanced by a number taken from the losses (.item()), and batch normalisation averages over all batches (momentum=None)."""
import torch, torch.nn as nn, torch.nn.functional as F, program
TRUTH = dict(id="788_control_numbers_that_balance_terms", cause="none", knowable_at=-1)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.body, s.norm, s.head, s.back = nn.Linear(12, 32), nn.BatchNorm1d(32, momentum=None), nn.Linear(32, 4), nn.Linear(32, 12)
    def forward(s, x): z = F.relu(s.norm(s.body(x))); return s.head(z), s.back(z)
x, y = program.blobs(2048, program.SEED); m = Net(); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m); scale = 1.0
for k in range(300):
    i = torch.randint(0, 2048, (64,)); out, back = m(x[i]); ce, rec = F.cross_entropy(out, y[i]), F.mse_loss(back, x[i])
    scale = 0.9 * scale + 0.1 * ce.item() / max(rec.item(), 1e-4); loss = ce + scale * rec; opt.zero_grad(); loss.backward(); opt.step()
m.eval(); tx, ty = program.blobs(512, 99)
with torch.no_grad(): program.metric(F.cross_entropy(m(tx)[0], ty))
