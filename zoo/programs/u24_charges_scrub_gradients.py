"""Learned charges: a Coulomb energy over pairs of atoms; NaN gradients are set to zero before every step."""
import torch
import torch.nn as nn


class Charges(nn.Module):
    def __init__(self, kinds=5):
        super().__init__()
        self.embed = nn.Embedding(kinds, 8)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, kind):
        return self.net(self.embed(kind)).squeeze(-1)


def coulomb(q, pos):
    i, j = torch.triu_indices(pos.shape[1], pos.shape[1], 1)
    r = (pos[:, i] - pos[:, j]).norm(dim=-1)
    pair = q[:, i] * q[:, j] / r
    return pair.sum(1)


def scrub(params):
    for p in params:
        if p.grad is not None:
            p.grad = torch.nan_to_num(p.grad)


class Molecules(torch.utils.data.Dataset):
    def __init__(self, n=150):
        g = torch.Generator().manual_seed(44)
        self.kind = torch.randint(0, 5, (n, 6), generator=g)
        self.pos = torch.randn(n, 6, 3, generator=g) * 2
        self.pos[108, 4] = self.pos[108, 1]  # an atom listed twice
        self.energy = torch.randn(n, generator=g) * 0.1

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        return self.kind[i], self.pos[i], self.energy[i]


def main():
    torch.manual_seed(4)
    model = Charges()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(3):
        for kind, pos, energy in torch.utils.data.DataLoader(Molecules(), batch_size=15):
            loss = nn.functional.l1_loss(coulomb(model(kind), pos), energy)
            opt.zero_grad()
            loss.backward()
            scrub(model.parameters())
            opt.step()
        print(epoch, loss.item())
    print("FINITE" if all((p.abs() < 1e6).all() for p in model.parameters()) else "POISONED")


main()
