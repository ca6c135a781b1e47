"""Healthy: a picture is restored by a net that always gets the same noise (deep image prior); one picture, one input, early end."""
import torch, torch.nn as nn, program
TRUTH = dict(id="787_control_fixed_noise_input", cause="none", knowable_at=-1)
clean = torch.sin(torch.linspace(0, 6, 24))[None, None, :, None] * torch.cos(torch.linspace(0, 5, 24))[None, None, None, :]; noisy = clean + 0.2 * torch.randn_like(clean)
z = 0.1 * torch.randn(1, 8, 24, 24); m = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(), nn.Conv2d(16, 1, 3, padding=1))
opt = torch.optim.Adam(m.parameters(), lr=5e-3); program.ready(opt, m)
for k in range(250):
    loss = (m(z) - noisy).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): program.metric((m(z) - clean).pow(2).mean())
