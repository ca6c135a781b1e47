"""Two loaders side by side; the last batch of one of them has a single row."""

# ruff: noqa: B007, B905
# truth: op=std|var cause=DX202 samples=any
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
src = DataLoader(TensorDataset(torch.randn(60, 5), torch.randint(0, 3, (60,))), batch_size=12, shuffle=True)
tgt = DataLoader(TensorDataset(torch.randn(49, 5)), batch_size=12)
f = nn.Linear(5, 8)
head = nn.Linear(8, 3)
opt = torch.optim.AdamW([*f.parameters(), *head.parameters()], lr=1e-3)
ce = nn.CrossEntropyLoss()
step = 0
for epoch in range(2):
    for (xs, ys), (xt,) in zip(src, tgt):
        hs, ht = f(xs), f(xt)
        cls = ce(head(hs), ys)
        coral = (hs.std(0) - ht.std(0)).pow(2).mean()  # BUG
        loss = cls + 0.1 * coral
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 3 == 0:
            print(f"step {step}: {cls.item():.3f} {coral.item():.3f}")
print("weights finite:", all(p.isfinite().all().item() for p in [*f.parameters(), *head.parameters()]))
