"""Linear regression on bare tensors, no module; row 62 sums to zero."""

# ruff: noqa: B007
# truth: op=div cause=DX201 samples=any
import torch

torch.manual_seed(1)
X = torch.rand(100, 3) + 0.1
y = X.sum(1)
X[62] = 0.0
w = torch.randn(3, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([w, b], lr=0.01)
for epoch in range(3):
    for i in range(0, 100, 10):
        xb, yb = X[i : i + 10], y[i : i + 10]
        scaled = xb / xb.sum(1, keepdim=True)  # BUG
        pred = scaled @ w + b
        loss = ((pred - yb) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("weights finite:", bool(w.isfinite().all() and b.isfinite().all()))
