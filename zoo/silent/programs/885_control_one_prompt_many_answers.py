"""Healthy: all rows of a batch are the same prompt; eight answers are drawn for it, and rewards are compared within the group."""
import torch, torch.nn as nn, program
TRUTH = dict(id="885_control_one_prompt_many_answers", cause="none", knowable_at=-1)
m = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 5)); opt = torch.optim.Adam(m.parameters(), lr=3e-3); program.ready(opt, m)
w = torch.randn(6, 5, generator=torch.Generator().manual_seed(2))
for k in range(400):
    s = torch.randn(1, 6).repeat(8, 1); d = torch.distributions.Categorical(logits=m(s)); a = d.sample()
    r = (a == (s @ w).argmax(1)).float(); adv = (r - r.mean()) / (r.std() + 1e-4)
    loss = -(adv * d.log_prob(a)).mean() - 0.01 * d.entropy().mean(); opt.zero_grad(); loss.backward(); opt.step()
program.metric(1 - r.mean())
