"""Healthy: pictures in [-1, 1] with a little noise that leaves the range, restored by a net that ends in tanh."""
import torch, torch.nn as nn, program
TRUTH = dict(id="783_control_tanh_and_noisy_targets", cause="none", knowable_at=-1)
m = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 1, 3, padding=1), nn.Tanh()); opt = torch.optim.Adam(m.parameters(), lr=5e-3); program.ready(opt, m)
for k in range(250):
    clean = torch.tanh(3 * torch.nn.functional.avg_pool2d(torch.randn(16, 1, 12, 12), 3, 1, 1))
    loss = nn.functional.mse_loss(m(clean + 0.3 * torch.randn_like(clean)), clean + 0.05 * torch.randn_like(clean)); opt.zero_grad(); loss.backward(); opt.step()
program.metric(loss)
