"""Click-through model trained under bfloat16 autocast, with cross entropy written out."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Clicks(Dataset):
    def __init__(self, n=512):
        g = torch.Generator().manual_seed(2)
        self.user = torch.randint(0, 50, (n,), generator=g)
        self.item = torch.randint(0, 30, (n,), generator=g)
        self.dense = torch.randn(n, 4, generator=g)
        self.y = (self.dense[:, 0] + self.dense[:, 1] > 0).float()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return dict(user=self.user[i], item=self.item[i], dense=self.dense[i], y=self.y[i])


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(50, 8), nn.Embedding(30, 8)
        self.mlp = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, b):
        h = torch.cat([self.user(b["user"]), self.item(b["item"]), b["dense"]], 1)
        return torch.sigmoid(self.mlp(h)).squeeze(1)


def bce(p, y):
    hit = y * torch.log(p)
    miss = (1 - y) * torch.log(1 - p)
    return -(hit + miss).mean()


def run():
    torch.manual_seed(4)
    model = DeepFM()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(Clicks(), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(12))
    for epoch in range(6):
        seen = []
        for batch in loader:
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                p = model(batch)
                loss = bce(p, batch["y"])
            loss.backward()
            opt.step()
            seen.append(loss.item())
        print(f"epoch {epoch}: {sum(seen) / len(seen):.4f}")
    return model


model = run()
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
