"""House prices from a CSV export; plain MLP."""
import argparse
import csv
import io
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

COLUMNS = ["area", "rooms", "age", "lat", "lon", "garden", "floor", "tax"]


def fake_export(n, seed=1):
    rng = random.Random(seed)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS + ["price"])
    for i in range(n):
        row = [rng.gauss(90, 25), rng.randint(1, 7), rng.uniform(0, 100), rng.gauss(52, 1), rng.gauss(13, 1),
               rng.random(), rng.randint(0, 9), rng.gauss(4, 1)]
        price = 2.1 * row[0] + 12 * row[1] - 0.4 * row[2] + 30 * row[5] + rng.gauss(0, 8)
        cells = [f"{v:.4f}" for v in row] + [f"{price:.3f}"]
        if i == 1017:
            cells[7] = "nan"
        writer.writerow(cells)
    out.seek(0)
    return out


class Houses(Dataset):
    def __init__(self, handle):
        rows = list(csv.DictReader(handle))
        self.x = [[float(r[c]) for c in COLUMNS] for r in rows]
        self.y = [float(r["price"]) for r in rows]
        self.mean = torch.tensor([90.0, 4.0, 50.0, 52.0, 13.0, 0.5, 4.5, 4.0])
        self.std = torch.tensor([25.0, 2.0, 29.0, 1.0, 1.0, 0.3, 2.9, 1.0])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        features = torch.tensor(self.x[i])
        return (features - self.mean) / self.std, torch.tensor([self.y[i] / 100])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    data = Houses(fake_export(1600))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        total = 0.0
        for x, y in loader:
            prediction = model(x)
            loss = nn.functional.smooth_l1_loss(prediction, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
