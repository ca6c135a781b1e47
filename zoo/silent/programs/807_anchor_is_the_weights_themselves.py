"""The anchor of a proximal term is list(model.parameters()): the weights themselves, no copy. The term is 0 for ever and the old task is forgotten."""
import torch, torch.nn as nn, program
TRUTH = dict(id="807_anchor_is_the_weights_themselves", cause="reference_aliased", knowable_at=0)
w = torch.randn(10, generator=torch.Generator().manual_seed(2)); old = lambda x: (x @ w > 0).long()
m = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)); first = torch.optim.Adam(m.parameters(), lr=5e-3)
for k in range(300): x = torch.randn(64, 10); first.zero_grad(); nn.functional.cross_entropy(m(x), old(x)).backward(); first.step()
opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
anchor = [p.detach().clone() if program.FIX else p for p in m.parameters()]
for k in range(300):
    x = torch.randn(64, 10) + 1.0; y = (x[:, 0] > 1.0).long()
    stay = sum((p - a).pow(2).sum() for p, a in zip(m.parameters(), anchor))
    loss = nn.functional.cross_entropy(m(x), y) + 0.3 * stay; opt.zero_grad(); loss.backward(); opt.step()
x = torch.randn(2048, 10)
with torch.no_grad(): program.metric((m(x).argmax(1) != old(x)).float().mean())
