"""Healthy: an averaged model is made at the start and looked at before it is first updated, in the second half of the run."""
import torch, torch.nn as nn, program
from torch.optim.swa_utils import SWALR, AveragedModel
TRUTH = dict(id="888_control_average_begins_halfway", cause="none", knowable_at=-1)
x, y = program.blobs(1024, program.SEED); tx, ty = program.blobs(1024, 99)
m = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4)); opt = torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9); program.ready(opt, m)
average, rates = AveragedModel(m), SWALR(opt, swa_lr=0.02, anneal_epochs=2)
for epoch in range(10):
    for i in torch.randperm(1024).split(32): loss = nn.functional.cross_entropy(m(x[i]), y[i]); opt.zero_grad(); loss.backward(); opt.step()
    if epoch >= 5: average.update_parameters(m); rates.step()
    with torch.no_grad(): v = nn.functional.cross_entropy(average(tx), ty)
program.metric(v)
