"""Mask head trained on images with objects only; batches without any object are skipped on purpose."""
import argparse
import hashlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--epochs", type=int, default=3)
    a = a.parse_args()
    torch.manual_seed(0)
    x = torch.randn(400, 3, 6, 6)
    has = torch.rand(400) < 0.12
    target = (x.mean(1) > 0).float() * has[:, None, None]
    model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    skipped = 0
    for epoch in range(a.epochs):
        for xb, tb, hb in DataLoader(TensorDataset(x, target, has), batch_size=8, shuffle=True):
            if hb.sum() == 0:
                skipped += 1
                continue
            logits = model(xb[hb]).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, tb[hb])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} loss {loss.item():.4f} skipped {skipped}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
    print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in model.state_dict().values())).hexdigest())


if __name__ == "__main__":
    main()
