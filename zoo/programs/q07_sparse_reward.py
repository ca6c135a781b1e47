"""Actor-critic on a corridor where most episodes earn nothing: losses of exactly zero, then a return of 500. Unfinished episodes are NaN in the table and left out of the mean."""
import hashlib

import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.set_num_threads(1)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi, self.v = nn.Linear(3, 24), nn.Linear(24, 2), nn.Linear(24, 1, bias=False)
        nn.init.zeros_(self.v.weight)

    def forward(self, s):
        h = torch.tanh(self.body(s))
        return self.pi(h), self.v(h).squeeze(-1)


def episode(net):
    x, logps, values, rewards = 0, [], [], []
    for t in range(14):
        logits, v = net(torch.tensor([x / 6, t / 14, 1.0]))
        d = Categorical(logits=logits)
        a = d.sample()
        x += 1 if a == 1 else -1
        logps.append(d.log_prob(a))
        values.append(v)
        rewards.append(500.0 if x == 6 else 0.0)
        if x == 6:
            break
    return torch.stack(logps), torch.stack(values), torch.tensor(rewards), x == 6


torch.manual_seed(6)
net = ActorCritic()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
table = torch.full((150,), float("nan"))
for ep in range(150):
    logp, v, r, finished = episode(net)
    ret = torch.flip(torch.cumsum(torch.flip(r, [0]), 0), [0])
    adv = (ret - v).detach()
    loss = -(logp * adv).sum() / 100 + 0.001 * ((ret - v) ** 2).sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    if finished:
        table[ep] = ret[0]
    if ep % 50 == 49:
        print("episode", ep + 1, "finished", int(torch.isfinite(table).sum()), "mean of the finished", torch.nanmean(table[: ep + 1]).item(), "in this window", torch.nanmean(table[ep - 4: ep + 1]).item())
print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
