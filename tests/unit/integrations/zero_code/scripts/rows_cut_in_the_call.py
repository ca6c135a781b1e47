"""No loader: each batch is cut out of the data inside the model's call."""
# truth: op=sqrt cause=DX301 samples=37

import torch
from torch import nn

torch.manual_seed(0)
LEFT, RIGHT = torch.randn(60, 5), torch.randn(60, 5)
RIGHT[37] = LEFT[37]
net = nn.Linear(5, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for _epoch in range(2):
    for k in range(0, 60, 6):
        gap = (net(LEFT[k : k + 6]) - net(RIGHT[k : k + 6])).pow(2).sum(1)
        loss = (gap.sqrt() - 1.0).abs().mean()  # BUG
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("weights finite:", all(bool(torch.isfinite(p).all()) for p in net.parameters()))
