"""Message passing over small molecules; own collate, mean aggregation by index_add."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Molecules(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(23)
        self.graphs = []
        for i in range(n):
            atoms = int(torch.randint(4, 9, (1,), generator=g))
            x = torch.randn(atoms, 6, generator=g)
            ring = torch.arange(atoms)
            src = torch.cat([ring, (ring + 1) % atoms])
            dst = torch.cat([(ring + 1) % atoms, ring])
            if i == 113:  # a counter ion: atom 0 has no bond
                keep = (src != 0) & (dst != 0)
                src, dst = src[keep], dst[keep]
            self.graphs.append((x, torch.stack([src, dst]), x[:, 0].sum().tanh() + x[:, 1].mean()))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


def collate(items):
    xs, edges, owner, ys, offset = [], [], [], [], 0
    for k, (x, edge, y) in enumerate(items):
        xs.append(x)
        edges.append(edge + offset)
        owner.append(torch.full((len(x),), k))
        ys.append(y)
        offset += len(x)
    return {"x": torch.cat(xs), "edge_index": torch.cat(edges, 1), "batch": torch.cat(owner), "y": torch.stack(ys)}


def scatter_sum(values, index, size):
    return torch.zeros(size, values.shape[1], dtype=values.dtype).index_add_(0, index, values)


class Conv(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.message = nn.Linear(2 * d, d)
        self.update = nn.Linear(2 * d, d)

    def forward(self, x, edge_index):
        src, dst = edge_index
        m = torch.relu(self.message(torch.cat([x[src], x[dst]], 1)))
        total = scatter_sum(m, dst, len(x))
        degree = torch.bincount(dst, minlength=len(x)).to(x.dtype)
        mean = total / degree.unsqueeze(1)
        return x + torch.relu(self.update(torch.cat([x, mean], 1)))


class GNN(nn.Module):
    def __init__(self, d=24, layers=3):
        super().__init__()
        self.embed = nn.Linear(6, d)
        self.convs = nn.ModuleList(Conv(d) for _ in range(layers))
        self.readout = nn.Linear(d, 1)

    def forward(self, data):
        h = self.embed(data["x"])
        for conv in self.convs:
            h = conv(h, data["edge_index"])
        pooled = scatter_sum(h, data["batch"], len(data["y"]))
        return self.readout(pooled).squeeze(1)


def run(epochs=2):
    torch.manual_seed(4)
    loader = DataLoader(Molecules(), batch_size=8, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(12))
    model = GNN()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    criterion = nn.SmoothL1Loss()
    for epoch in range(epochs):
        total = 0.0
        for data in loader:
            optimizer.zero_grad()
            loss = criterion(model(data), data["y"])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(data["y"])
        print(f"epoch {epoch} loss {total / len(loader.dataset):.4f}")
    return model


if __name__ == "__main__":
    state = run().state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
