"""BCEWithLogits with labels -1 and 1: the term of the negatives rewards ever larger scores without limit."""
import torch, torch.nn as nn, program
TRUTH = dict(id="703_bce_of_signed_labels", cause="loss_without_minimum", knowable_at=0)
x, y = program.blobs(2048, program.SEED, noise=2.0); tx, ty = program.blobs(1024, 99, noise=2.0)
sign = lambda y: (y < 2).float() * 2 - 1
m = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1)); opt = torch.optim.Adam(m.parameters(), lr=1e-2); program.ready(opt, m)
crit = nn.BCEWithLogitsLoss()
for k in range(400):
    i = torch.randint(0, 2048, (64,))
    t = sign(y[i])
    if program.FIX: t = (t + 1) / 2
    loss = crit(m(x[i]).squeeze(1), t)
    opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad():
    p = torch.sigmoid(m(tx).squeeze(1)); t = (sign(ty) + 1) / 2
    program.metric(torch.nn.functional.binary_cross_entropy(p.clamp(1e-4, 1 - 1e-4), t))
