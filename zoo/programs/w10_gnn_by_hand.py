"""Molecule property regression, GCN written by hand, graphs batched block-diagonally."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Molecules(Dataset):
    def __init__(self, n=600):
        g = torch.Generator().manual_seed(13)
        self.graphs = []
        for i in range(n):
            k = int(torch.randint(3, 9, (1,), generator=g))
            atoms = torch.randint(0, 5, (k,), generator=g)
            edges = [(j, int(torch.randint(0, j, (1,), generator=g))) for j in range(1, k)]
            if i == 331:
                edges = edges[:-1]  # salt: one ion is bonded to nothing
            target = atoms.float().mean() + 0.1 * k
            self.graphs.append((atoms, edges, target))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


def collate(graphs):
    n = sum(len(a) for a, _, _ in graphs)
    adjacency, atoms, owner, offset = torch.zeros(n, n), [], [], 0
    for k, (a, edges, _) in enumerate(graphs):
        for i, j in edges:
            adjacency[offset + i, offset + j] = adjacency[offset + j, offset + i] = 1
        atoms.append(a)
        owner += [k] * len(a)
        offset += len(a)
    return torch.cat(atoms), adjacency, torch.tensor(owner), torch.stack([t for _, _, t in graphs])


class GCN(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.embed = nn.Embedding(5, d)
        self.w1, self.w2 = nn.Linear(d, d), nn.Linear(d, d)
        self.readout = nn.Linear(d, 1)

    def forward(self, atoms, adjacency, owner, count):
        degree = adjacency.sum(1)
        scale = degree.pow(-0.5)
        norm = scale[:, None] * adjacency * scale[None, :]
        h = self.embed(atoms)
        h = h + torch.relu(norm @ self.w1(h))
        h = h + torch.relu(norm @ self.w2(h))
        pooled = torch.zeros(count, h.shape[1]).index_add(0, owner, h)
        return self.readout(pooled).squeeze(-1)


def main():
    torch.manual_seed(4)
    loader = DataLoader(Molecules(), batch_size=12, shuffle=True, collate_fn=collate)
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(2):
        losses = []
        for atoms, adjacency, owner, y in loader:
            loss = nn.functional.mse_loss(model(atoms, adjacency, owner, len(y)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} mse {sum(losses) / len(losses):.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in model.state_dict().values()) else "POISONED")


main()
