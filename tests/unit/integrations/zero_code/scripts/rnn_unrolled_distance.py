"""A recurrent cell unrolled in the loop; the distance of a state to its target has no slope at zero."""
# truth: op=sqrt cause=DX301 samples=row

import torch
from torch import nn

torch.manual_seed(0)
seq, dim = 5, 3
inputs = torch.randn(64, seq, dim)
targets = torch.randn(64, seq, dim) * 0.1
inputs[30] = 0.0
targets[30] = 0.0


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.ih = nn.Linear(dim, dim, bias=False)
        self.hh = nn.Linear(dim, dim, bias=False)

    def forward(self, x, h):
        return torch.tanh(self.ih(x) + self.hh(h))


cell = Cell()
optimizer = torch.optim.RMSprop(cell.parameters(), lr=1e-3)
batch_size = 8
for epoch in range(2):
    for start in range(0, len(inputs), batch_size):
        x = inputs[start : start + batch_size]
        y = targets[start : start + batch_size]
        hidden = torch.zeros(len(x), dim)
        loss = 0
        optimizer.zero_grad()
        for t in range(seq):
            hidden = cell(x[:, t], hidden)
            loss += torch.sqrt(((hidden - y[:, t]) ** 2).sum(dim=1)).mean()  # BUG
        loss.backward()
        torch.nn.utils.clip_grad_norm_(cell.parameters(), 1.0)
        optimizer.step()
    print(epoch, float(loss))
print("weights finite:", all(p.isfinite().all().item() for p in cell.parameters()))
