"""The clearing of gradients is called on the averaged copy, which has none: those of the network itself pile up."""
import copy, torch, torch.nn as nn, program
TRUTH = dict(id="801_shadow_copy_is_cleared", cause="missing_zero_grad", knowable_at=1)
m = nn.Sequential(nn.Linear(8, 48), nn.Tanh(), nn.Linear(48, 1)); shadow = copy.deepcopy(m).requires_grad_(False)
opt = torch.optim.SGD(m.parameters(), lr=0.02); program.ready(opt, m)
w = torch.randn(8, 1, generator=torch.Generator().manual_seed(2)); f = lambda x: torch.tanh(x @ w)
for k in range(300):
    (m if program.FIX else shadow).zero_grad()
    x = torch.randn(32, 8); loss = nn.functional.mse_loss(m(x), f(x) + 0.1 * torch.randn(32, 1)); loss.backward(); opt.step()
    with torch.no_grad():
        for a, b in zip(shadow.parameters(), m.parameters()): a.lerp_(b, 0.05)
x = torch.randn(1024, 8)
with torch.no_grad(): program.metric(nn.functional.mse_loss(shadow(x), f(x)))
