"""clip_grad_norm_ stands before backward: it clips gradients that were just set to zero. A few wild targets throw the weights far off."""
import torch, torch.nn as nn, program
TRUTH = dict(id="708_clipped_before_backward", cause="clipped_before_backward", knowable_at=1)
g = torch.Generator().manual_seed(program.SEED); w = torch.randn(10, 1, generator=torch.Generator().manual_seed(2))
m = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)); opt = torch.optim.SGD(m.parameters(), lr=0.05); program.ready(opt, m)
for k in range(400):
    x = torch.randn(32, 10, generator=g); y = torch.tanh(x @ w) + 0.1 * torch.randn(32, 1, generator=g)
    if k % 10 == 7: y[0] += 200
    loss = nn.functional.mse_loss(m(x), y)
    opt.zero_grad()
    if program.FIX: loss.backward(); nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    else: nn.utils.clip_grad_norm_(m.parameters(), 1.0); loss.backward()
    opt.step()
x = torch.randn(512, 10, generator=g)
with torch.no_grad(): program.metric(nn.functional.mse_loss(m(x), torch.tanh(x @ w)))
