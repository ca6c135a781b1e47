"""A value network ends in a ReLU and all rewards are costs: the values that it has to learn are below zero."""
import torch, torch.nn as nn, program
TRUTH = dict(id="816_values_end_in_a_relu", cause="target_out_of_reach", knowable_at=2)
layers = [nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3)] + ([] if program.FIX else [nn.ReLU()])
m = nn.Sequential(*layers); opt = torch.optim.Adam(m.parameters(), lr=2e-3); program.ready(opt, m)
w = torch.randn(6, 3, generator=torch.Generator().manual_seed(2)); value = lambda s: -1 - (s @ w).abs()
for k in range(400):
    s = torch.randn(64, 6); a = torch.randint(0, 3, (64, 1))
    loss = nn.functional.smooth_l1_loss(m(s).gather(1, a), value(s).gather(1, a) + 0.1 * torch.randn(64, 1)); opt.zero_grad(); loss.backward(); opt.step()
s = torch.randn(1024, 6)
with torch.no_grad(): program.metric((m(s) - value(s)).abs().mean())
