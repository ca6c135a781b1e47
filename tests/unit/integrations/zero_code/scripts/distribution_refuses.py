"""A distribution refuses the logits that a temperature of zero has made infinite; the error does not say why."""
# truth: op=div cause=DX201 samples=any exit=1

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.register_buffer("heat", torch.tensor(1.0))

    def forward(self, seen):
        return self.body(seen) / self.heat  # BUG


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
for _step in range(10):
    choice = torch.distributions.Categorical(logits=policy(torch.randn(8, 6)))
    loss = -choice.log_prob(choice.sample()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    policy.heat.sub_(0.25)
