"""Messages along unit vectors between atoms, one molecule after the other. Some molecules come from a tool that adds self loops."""
import torch
import torch.nn as nn


def molecule(g, loops):
    n = int(torch.randint(4, 8, (1,), generator=g))
    pos, kind = torch.randn(n, 3, generator=g), torch.randint(0, 4, (n,), generator=g)
    src, dst = torch.where(~torch.eye(n, dtype=torch.bool))
    if loops:
        src, dst = torch.cat([src, torch.arange(n)]), torch.cat([dst, torch.arange(n)])
    return {"pos": pos, "kind": kind, "edge_index": torch.stack([src, dst]), "y": pos.norm(dim=1).mean()}


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.msg, self.upd = nn.Linear(2 * d + 3, d), nn.Linear(2 * d, d)

    def forward(self, h, pos, edge_index):
        src, dst = edge_index
        rel = pos[src] - pos[dst]
        unit = rel / rel.norm(dim=1, keepdim=True)  # BUG
        m = torch.relu(self.msg(torch.cat([h[src], h[dst], unit.abs()], 1)))
        agg = torch.zeros_like(h).index_add_(0, dst, m)
        return h + torch.tanh(self.upd(torch.cat([h, agg], 1)))


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.embed, self.layers = nn.Embedding(4, d), nn.ModuleList([Layer(d), Layer(d)])
        self.out = nn.Linear(d, 1)

    def forward(self, mol):
        h = self.embed(mol["kind"])
        for layer in self.layers:
            h = layer(h, mol["pos"], mol["edge_index"])
        return self.out(h.mean(0)).squeeze()


def main():
    g = torch.Generator().manual_seed(23)
    mols = [molecule(g, loops=k == 34) for k in range(50)]
    torch.manual_seed(23)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(2):
        total = 0.0
        for mol in mols:
            loss = (net(mol) - mol["y"]) ** 2
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print("epoch", epoch, "mean loss", total / len(mols))
    print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")


main()
