"""An averaged model is evaluated and kept after each epoch; its update waits for an epoch that the run does not have."""
import torch, torch.nn as nn, program
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
TRUTH = dict(id="806_average_starts_after_the_end", cause="ema_never_updated", knowable_at=32)
x, y = program.blobs(1024, program.SEED); tx, ty = program.blobs(1024, 99)
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
average, start = AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.95)), 0 if program.FIX else 20
for epoch in range(10):
    for i in torch.randperm(1024).split(32):
        loss = nn.functional.cross_entropy(m(x[i]), y[i]); opt.zero_grad(); loss.backward(); opt.step()
        if epoch >= start: average.update_parameters(m)
    with torch.no_grad(): v = nn.functional.cross_entropy(average(tx), ty)
program.metric(v)
