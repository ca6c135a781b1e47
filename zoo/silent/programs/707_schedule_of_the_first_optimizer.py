"""The optimizer is made anew once the model is complete, the schedule still moves the rate of the first one."""
import torch, torch.nn as nn, program
TRUTH = dict(id="707_schedule_of_the_first_optimizer", cause="schedule_of_another_optimizer", knowable_at=0)
x = torch.randn(512, 20); w = torch.randn(20, 1, generator=torch.Generator().manual_seed(2)); y = x @ w + 3 * torch.randn(512, 1)
m = nn.Linear(20, 1); steps = 600
opt = torch.optim.SGD(m.parameters(), lr=0.09)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=steps)
opt = torch.optim.SGD(m.parameters(), lr=0.09, weight_decay=1e-5)
if program.FIX: sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=steps)
program.ready(opt, m)
import warnings; warnings.filterwarnings("ignore")
for k in range(steps):
    i = torch.randint(0, 512, (8,))
    loss = nn.functional.mse_loss(m(x[i]), y[i]); opt.zero_grad(); loss.backward(); opt.step(); sched.step()
best = torch.linalg.lstsq(x, y).solution
with torch.no_grad(): program.metric((m.weight.t() - best).norm())
