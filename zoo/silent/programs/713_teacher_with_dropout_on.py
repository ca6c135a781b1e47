"""The teacher of a distillation was never put into evaluation mode: its dropout is on and its batch statistics drift to those of augmented data."""
import torch, torch.nn as nn, torch.nn.functional as F, program
TRUTH = dict(id="713_teacher_with_dropout_on", cause="train_mode_in_eval", knowable_at=0)
def net(): return nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.7), nn.Linear(64, 6))
x, y = program.blobs(2048, 1, k=6, noise=1.0); tx, ty = program.blobs(1024, 99, k=6, noise=1.0)
t = net(); o = torch.optim.Adam(t.parameters(), lr=5e-3)
for _ in range(300):
    i = torch.randint(0, 2048, (128,)); o.zero_grad(); F.cross_entropy(t(x[i]), y[i]).backward(); o.step()
for p in t.parameters(): p.requires_grad_(False)
if program.FIX: t.eval()
sx = program.blobs(64, program.SEED, k=6, noise=1.0)[0]
s = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 6)); opt = torch.optim.Adam(s.parameters(), lr=3e-3); program.ready(opt, s)
for k in range(300):
    xb = sx[torch.randint(0, 64, (4,))] + 0.3 * torch.randn(4, 12)
    with torch.no_grad(): target = t(xb).softmax(-1)
    loss = F.kl_div(s(xb).log_softmax(-1), target, reduction="batchmean"); opt.zero_grad(); loss.backward(); opt.step()
t.eval(); s.eval()
with torch.no_grad(): program.metric(F.cross_entropy(s(tx), ty))
