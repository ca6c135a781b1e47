"""A variational autoencoder draws with Normal(...).sample(): no gradient of the reconstruction reaches the encoder, only the KL term does."""
import torch, torch.nn as nn, program
TRUTH = dict(id="711_latent_sample_without_path", cause="detached_graph", knowable_at=0)
class VAE(nn.Module):
    def __init__(s):
        super().__init__(); s.enc = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)); s.dec = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 16))
    def forward(s, x):
        mu, lv = s.enc(x).chunk(2, -1); q = torch.distributions.Normal(mu, torch.exp(0.5 * lv))
        z = q.rsample() if program.FIX else q.sample()
        return s.dec(z), mu, lv
mix = torch.randn(3, 16, generator=torch.Generator().manual_seed(3)); data = lambda n: torch.tanh(torch.randn(n, 3) @ mix)
m = VAE(); opt = torch.optim.Adam(m.parameters(), lr=5e-3); program.ready(opt, m)
for k in range(500):
    x = data(64); r, mu, lv = m(x)
    loss = (r - x).pow(2).sum(-1).mean() + 0.05 * (-0.5 * (1 + lv - mu.pow(2) - lv.exp()).sum(-1)).mean()
    opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): x = data(1024); program.metric((m(x)[0] - x).pow(2).sum(-1).mean())
