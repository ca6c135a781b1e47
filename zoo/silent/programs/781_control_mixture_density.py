"""Healthy: a mixture density network; log densities are above 0 and the loss is negative."""
import torch, torch.nn as nn, program
TRUTH = dict(id="781_control_mixture_density", cause="none", knowable_at=-1)
m = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 9)); opt = torch.optim.Adam(m.parameters(), lr=5e-3); program.ready(opt, m)
for k in range(400):
    x = torch.rand(128, 1); y = 0.02 * torch.randn(128, 1) + torch.where(torch.rand(128, 1) < 0.5, x, -x) * 0.1
    a, mu, ls = m(x).chunk(3, -1)
    comp = a.log_softmax(-1) + torch.distributions.Normal(mu, ls.clamp(-6, 2).exp()).log_prob(y)
    loss = torch.nn.functional.nll_loss(torch.logsumexp(comp, -1, keepdim=True), torch.zeros(128, dtype=torch.long)); opt.zero_grad(); loss.backward(); opt.step()
program.metric(loss)
