"""Healthy: counts, most of them 0, are predicted through a ReLU, with a small penalty on the sum of squares of the weights in the loss."""
import torch, torch.nn as nn, program
TRUTH = dict(id="889_control_counts_and_a_small_penalty", cause="none", knowable_at=-1)
m = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1), nn.ReLU()); nn.init.ones_(m[2].bias); opt = torch.optim.Adam(m.parameters(), lr=2e-3); program.ready(opt, m)
for k in range(400):
    x = torch.randn(64, 6); y = (2 * x[:, :1]).clamp(min=0).round()
    loss = nn.functional.mse_loss(m(x), y) + 1e-4 * sum(p.pow(2).sum() for p in m.parameters()); opt.zero_grad(); loss.backward(); opt.step()
program.metric(loss)
