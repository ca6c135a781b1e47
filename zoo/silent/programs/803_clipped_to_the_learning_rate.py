"""clip_grad_norm_ is given the learning rate in the place of the limit: each step of SGD is a hundred times too short."""
import torch, torch.nn as nn, program
TRUTH = dict(id="803_clipped_to_the_learning_rate", cause="clip_throttles", knowable_at=3)
class Settings: lr, max_norm = 0.01, 1.0
x, y = program.blobs(2048, program.SEED); tx, ty = program.blobs(1024, 99)
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)); opt = torch.optim.SGD(m.parameters(), Settings.lr, momentum=0.9); program.ready(opt, m)
for k in range(300):
    i = torch.randint(0, 2048, (32,)); loss = nn.functional.cross_entropy(m(x[i]), y[i]); opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), Settings.max_norm if program.FIX else Settings.lr); opt.step()
with torch.no_grad(): program.metric((m(tx).argmax(1) != ty).float().mean())
