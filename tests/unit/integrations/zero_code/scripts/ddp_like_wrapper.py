"""The model is wrapped together with its criterion; target 12 holds exact zeros."""

# ruff: noqa: B007, E741
# truth: op=log cause=DX203 samples=12
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Wrapped(nn.Module):
    def __init__(self, module, criterion):
        super().__init__()
        self.module = module
        self.criterion = criterion

    def forward(self, x, y):
        return {"loss": self.criterion(self.module(x), y)}


class KL(nn.Module):
    def forward(self, logits, target):
        logp = logits.log_softmax(-1)
        return (target * (torch.log(target) - logp)).sum(-1).mean()  # BUG


torch.manual_seed(0)
X, T = torch.randn(48, 4), torch.rand(48, 3).softmax(-1)
T[12] = torch.tensor([1.0, 0.0, 0.0])
model = Wrapped(nn.Linear(4, 3), KL())
opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
for epoch in range(2):
    for i, (x, t) in enumerate(DataLoader(TensorDataset(X, T), batch_size=6, shuffle=True)):
        losses = model(x, t)
        loss = sum(l for l in losses.values())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
