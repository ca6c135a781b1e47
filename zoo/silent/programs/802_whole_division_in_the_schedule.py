"""A linear decay is written with whole division: (total - step) // total is 1 at the first step and 0 ever after."""
import torch, torch.nn as nn, program
TRUTH = dict(id="802_whole_division_in_the_schedule", cause="lr_zero", knowable_at=1)
x, y = program.blobs(2048, program.SEED); tx, ty = program.blobs(1024, 99); total = 250
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)); opt = torch.optim.AdamW(m.parameters(), lr=3e-3); program.ready(opt, m)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: (total - step) / total if program.FIX else (total - step) // total)
for k in range(total):
    i = torch.randint(0, 2048, (32,)); loss = nn.functional.cross_entropy(m(x[i]), y[i])
    opt.zero_grad(); loss.backward(); opt.step(); sched.step()
with torch.no_grad(): program.metric((m(tx).argmax(1) != ty).float().mean())
