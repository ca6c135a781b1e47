"""Topic model on sparse shares with an entropy term that has its own backward (the forward takes care of zeros)."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class XLogX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x * torch.log(x.clamp(min=1e-30)), torch.zeros_like(x))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (torch.log(x) + 1)  # BUG


class Topics(nn.Module):
    def __init__(self, words=40, topics=6):
        super().__init__()
        self.infer = nn.Linear(words, topics)
        self.words = nn.Parameter(0.1 * torch.randn(topics, words))
        nn.init.constant_(self.infer.bias, 2.0)

    def forward(self, counts):
        raw = torch.relu(self.infer(counts))
        share = raw / (raw.sum(1, keepdim=True) + 1e-6)
        return share, torch.log_softmax(share @ self.words, -1)


def documents(n=300):
    g = torch.Generator().manual_seed(44)
    counts = torch.rand(n, 40, generator=g)
    counts[172] *= 60.0  # a book among the letters
    return TensorDataset(counts)


def main():
    torch.manual_seed(44)
    model = Topics()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for (counts,) in DataLoader(documents(), batch_size=15):
            share, logp = model(counts)
            words = counts / counts.sum(1, keepdim=True)
            loss = -(words * logp).sum(1).mean() + 0.05 * XLogX.apply(share).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


main()
