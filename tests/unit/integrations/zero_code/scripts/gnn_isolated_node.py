"""Mean aggregation over neighbours with index_add_; a node of graph 23 has no neighbour."""
# ruff: noqa: B007
# truth: op=div cause=DX201 samples=23|16,17,18,19,20,21,22,23

import torch
from torch import nn
from torch.utils.data import DataLoader


class MeanConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, x, src, dst):
        total = torch.zeros_like(x).index_add_(0, dst, x[src])
        degree = torch.zeros(len(x)).index_add_(0, dst, torch.ones(len(dst)))
        mean = total / degree[:, None]  # BUG
        return torch.relu(self.lin(mean + x))


class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = MeanConv(5, 8), MeanConv(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, g):
        h = self.conv2(self.conv1(g["x"], g["src"], g["dst"]), g["src"], g["dst"])
        pooled = torch.zeros(g["num_graphs"], 8).index_add_(0, g["graph"], h)
        return self.head(pooled)


def make_graph(i):
    g = torch.Generator().manual_seed(i)
    n = 4 + i % 3
    src, dst = torch.arange(n), (torch.arange(n) + 1) % n
    if i == 23:
        src, dst = src[:-1], dst[:-1]
    return {"x": torch.randn(n, 5, generator=g), "src": src, "dst": dst, "y": i % 2}


def collate(graphs):
    offset, out = 0, {"x": [], "src": [], "dst": [], "graph": [], "y": []}
    for k, g in enumerate(graphs):
        out["x"].append(g["x"])
        out["src"].append(g["src"] + offset)
        out["dst"].append(g["dst"] + offset)
        out["graph"].append(torch.full((len(g["x"]),), k))
        out["y"].append(torch.tensor([g["y"]]))
        offset += len(g["x"])
    batch = {key: torch.cat(value) for key, value in out.items()}
    batch["num_graphs"] = len(graphs)
    return batch


torch.manual_seed(0)
dataset = [make_graph(i) for i in range(64)]
loader = DataLoader(dataset, batch_size=8, collate_fn=collate)
model = GNN()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for batch in loader:
        opt.zero_grad()
        out = model(batch)
        loss = criterion(out, batch["y"])
        loss.backward()
        opt.step()
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
