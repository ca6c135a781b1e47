"""Distillation by F.kl_div of the student's probabilities, not of their logarithm: minimised by p = 0/1 in the wrong way."""
import torch, torch.nn as nn, torch.nn.functional as F, program
TRUTH = dict(id="702_kl_of_probabilities", cause="softmax_twice", knowable_at=0)
x, y = program.blobs(2048, 1, noise=1.5); tx, ty = program.blobs(1024, 99, noise=1.5)
teacher = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4))
to = torch.optim.Adam(teacher.parameters(), lr=5e-3)
for _ in range(60):
    i = torch.randint(0, 2048, (256,)); to.zero_grad(); F.cross_entropy(teacher(x[i]), y[i]).backward(); to.step()
teacher.eval().requires_grad_(False)
s = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)); opt = torch.optim.Adam(s.parameters(), lr=5e-3); program.ready(opt, s)
for k in range(300):
    xb = x[torch.randint(0, 2048, (64,))]
    target = F.softmax(teacher(xb), -1)
    out = s(xb)
    loss = F.kl_div(F.log_softmax(out, -1) if program.FIX else F.softmax(out, -1), target, reduction="batchmean")
    opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric((teacher(tx).softmax(-1) - s(tx).softmax(-1)).abs().sum(1).mean())
