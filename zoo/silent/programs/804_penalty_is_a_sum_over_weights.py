"""The penalty on the weights is in the loss, a sum over all of them with a factor meant for their mean: they shrink to nothing."""
import torch, torch.nn as nn, program
TRUTH = dict(id="804_penalty_is_a_sum_over_weights", cause="weight_decay_dominates", knowable_at=5)
x, y = program.blobs(2048, program.SEED); tx, ty = program.blobs(1024, 99)
m = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)); opt = torch.optim.Adam(m.parameters(), lr=2e-3); program.ready(opt, m)
for k in range(400):
    i = torch.randint(0, 2048, (64,)); count = sum(p.numel() for p in m.parameters())
    penalty = sum(p.pow(2).sum() for p in m.parameters()) / (count if program.FIX else 1)
    loss = nn.functional.cross_entropy(m(x[i]), y[i]) + 0.5 * penalty; opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric(nn.functional.cross_entropy(m(tx), ty))
