"""Triplets with an easy margin: soon most batches give a loss of exactly zero."""
import hashlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    centres = torch.randn(8, 10) * 0.7
    label = torch.randint(0, 8, (1200,))
    data = TensorDataset(centres[label] + 0.3 * torch.randn(1200, 10), label)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))
    criterion = nn.TripletMarginLoss(margin=0.5)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    zero = 0
    for epoch in range(3):
        for x, y in DataLoader(data, batch_size=24, shuffle=True, drop_last=True):
            z = model(x)
            same = (y[:, None] == y) & ~torch.eye(24, dtype=torch.bool)
            keep = same.any(1)
            pos = same.float().argmax(1)
            neg = (y[:, None] != y).float().argmax(1)
            loss = criterion(z[keep], z[pos][keep], z[neg][keep])
            opt.zero_grad()
            loss.backward()
            opt.step()
            zero += loss.item() == 0.0
        print(f"epoch {epoch} loss {loss.item():.4f} zero so far {zero}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")
    print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in model.state_dict().values())).hexdigest())


main()
