"""Healthy: four micro-batches a step, and gradients are clipped after each backward, the last time just before the step."""
import torch, torch.nn as nn, program
TRUTH = dict(id="785_control_clipped_after_every_backward", cause="none", knowable_at=-1)
x, y = program.blobs(2048, program.SEED); m = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4)); opt = torch.optim.SGD(m.parameters(), lr=0.3, momentum=0.9); program.ready(opt, m)
for k in range(150):
    opt.zero_grad()
    for _ in range(4):
        i = torch.randint(0, 2048, (16,)); loss = nn.functional.cross_entropy(m(x[i]), y[i]); (loss / 4).backward(); nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()
program.metric(loss)
