"""An Accelerate loop with accumulation; a batch whose sample weights are all zero."""
# ruff: noqa: B007
# truth: op=div cause=DX201 samples=24,25,26,27

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    X, Y, W = torch.randn(64, 5), torch.randn(64, 1), torch.rand(64)
    W[24:28] = 0.0
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(X, Y, W), batch_size=4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s / 10))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    total_loss = 0
    for epoch in range(2):
        for step, (x, y, w) in enumerate(loader):
            with accelerator.accumulate(model):
                errors = (model(x) - y).pow(2).squeeze(-1)
                loss = (errors * w).sum() / w.sum()  # BUG
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
