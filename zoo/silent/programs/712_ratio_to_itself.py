"""PPO keeps no old log-probabilities: the ratio is exp(new - new), always 1 and without gradient, so only the entropy bonus moves the policy."""
import torch, torch.nn as nn, program
TRUTH = dict(id="712_ratio_to_itself", cause="compared_with_itself", knowable_at=1)
pi = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4)); v = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
net = nn.ModuleDict({"pi": pi, "v": v}); opt = torch.optim.Adam(net.parameters(), lr=3e-3); program.ready(opt, net)
w = torch.randn(6, 4, generator=torch.Generator().manual_seed(4)); reward = lambda s, a: (a == (s @ w).argmax(1)).float()
for it in range(60):
    s = torch.randn(256, 6)
    with torch.no_grad(): d = torch.distributions.Categorical(logits=pi(s)); a = d.sample(); old = d.log_prob(a)
    r = reward(s, a)
    for ep in range(4):
        for i in torch.randperm(256).split(128):
            d = torch.distributions.Categorical(logits=pi(s[i])); new = d.log_prob(a[i]); val = v(s[i]).squeeze(-1); adv = (r[i] - val.detach())
            ratio = torch.exp(new - (old[i] if program.FIX else d.log_prob(a[i])))
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() + 0.5 * (val - r[i]).pow(2).mean() - 0.003 * d.entropy().mean()
            opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(net.parameters(), 0.5); opt.step()
s = torch.randn(2048, 6)
with torch.no_grad(): program.metric(1 - reward(s, torch.distributions.Categorical(logits=pi(s)).sample()).mean())
