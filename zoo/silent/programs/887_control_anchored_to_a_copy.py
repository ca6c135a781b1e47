"""Healthy: a proximal term to a copy of the weights, zero at the first step, and a target network that is copied at every tenth."""
import copy, torch, torch.nn as nn, program
TRUTH = dict(id="887_control_anchored_to_a_copy", cause="none", knowable_at=-1)
m = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)); target = copy.deepcopy(m); anchor = [p.detach().clone() for p in m.parameters()]
opt = torch.optim.Adam(m.parameters(), lr=2e-3); program.ready(opt, m)
for k in range(300):
    s = torch.randn(64, 6); a = torch.randint(0, 2, (64, 1)); r = (s[:, :1] > 0).float() * a
    with torch.no_grad(): goal = r + 0.9 * target(s + 0.1 * torch.randn_like(s)).max(1, keepdim=True)[0]
    loss = nn.functional.mse_loss(m(s).gather(1, a), goal) + 0.01 * sum((p - q).pow(2).sum() for p, q in zip(m.parameters(), anchor)); opt.zero_grad(); loss.backward(); opt.step()
    if k % 10 == 9: target.load_state_dict(m.state_dict())
program.metric(loss)
