"""Healthy: the head first, then all layers with a new optimizer and its own schedule; the schedule of the first phase has done its work."""
import torch, torch.nn as nn, program
TRUTH = dict(id="786_control_two_phases_two_schedules", cause="none", knowable_at=-1)
x, y = program.blobs(2048, program.SEED); body, head = nn.Sequential(nn.Linear(12, 32), nn.ReLU()), nn.Linear(32, 4); m = nn.Sequential(body, head)
def phase(params, lr, n):
    opt = torch.optim.AdamW(params, lr=lr); program.ready(opt, m); sc = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=n)
    for k in range(n):
        i = torch.randint(0, 2048, (32,)); loss = nn.functional.cross_entropy(m(x[i]), y[i]); opt.zero_grad(); loss.backward(); opt.step(); sc.step()
    return loss
body.requires_grad_(False); phase(head.parameters(), 1e-2, 150)
body.requires_grad_(True); program.metric(phase(m.parameters(), 3e-3, 250))
