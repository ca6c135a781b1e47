"""The smoothness penalty is computed with numpy and added as a number: it is printed and falls with the rest, and trains nothing."""
import numpy as np, torch, torch.nn as nn, program
TRUTH = dict(id="819_penalty_computed_with_numpy", cause="detached_graph", knowable_at=0)
t = torch.linspace(0, 1, 64)[:, None]; clean = torch.sin(6 * t); noisy = clean + 0.4 * torch.randn(64, 1)
m = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)); opt = torch.optim.Adam(m.parameters(), lr=1e-2); program.ready(opt, m)
features = torch.cat([torch.cos(3 * k * t) for k in range(16)] + [torch.sin(3 * k * t) for k in range(16)], 1)
for k in range(800):
    curve = m(features)
    rough = (curve[2:] - 2 * curve[1:-1] + curve[:-2]).pow(2).mean() if program.FIX else torch.tensor(np.mean(np.diff(curve.detach().numpy(), 2, axis=0) ** 2))
    loss = (curve - noisy).pow(2).mean() + 500.0 * rough; opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric((m(features) - clean).pow(2).mean())
