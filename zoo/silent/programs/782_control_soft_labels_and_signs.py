"""Healthy: mixed-up labels between 0 and 1 for one head, labels of -1 and 1 with a soft margin for the other."""
import torch, torch.nn as nn, torch.nn.functional as F, program
TRUTH = dict(id="782_control_soft_labels_and_signs", cause="none", knowable_at=-1)
x, y = program.blobs(2048, program.SEED); m = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5)); opt = torch.optim.AdamW(m.parameters(), lr=3e-3); program.ready(opt, m)
for k in range(300):
    i = torch.randint(0, 2048, (64,)); lam = torch.rand(()); j = i.roll(1); xb = lam * x[i] + (1 - lam) * x[j]
    t = lam * F.one_hot(y[i], 4).float() + (1 - lam) * F.one_hot(y[j], 4).float(); out = m(xb)
    loss = F.binary_cross_entropy_with_logits(out[:, :4], t) + 0.3 * F.soft_margin_loss(m(x[i])[:, 4], (y[i] < 2).float() * 2 - 1)
    opt.zero_grad(); loss.backward(); opt.step()
program.metric(loss)
