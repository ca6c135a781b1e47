"""Supervised contrastive learning; classes are balanced by a sampler of our own, nearly."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class PairSampler(torch.utils.data.Sampler):
    """Batches in which every class comes at least twice, except that the rare class has an odd number of images."""

    def __init__(self, labels, size, seed):
        self.labels, self.size, self.seed = labels, size, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        pairs, single = [], []
        for c in self.labels.unique():
            idx = (self.labels == c).nonzero().flatten()
            idx = idx[torch.randperm(len(idx), generator=g)]
            pairs += list(idx[: len(idx) // 2 * 2].view(-1, 2))
            single += idx[len(idx) // 2 * 2 :].tolist()
        order = torch.randperm(len(pairs), generator=g)
        flat = torch.cat([pairs[i] for i in order]).tolist()
        for i in range(0, len(flat), self.size):
            batch = flat[i : i + self.size]
            yield batch + (single if i == 2 * self.size else [])

    def __len__(self):
        return (len(self.labels) + self.size - 1) // self.size


class SupCon(nn.Module):
    def __init__(self, temperature=0.2):
        super().__init__()
        self.temperature = temperature

    def forward(self, z, labels):
        z = F.normalize(z, dim=1)
        sim = z @ z.t() / self.temperature
        self_mask = torch.eye(len(z), dtype=torch.bool)
        logp = sim - torch.logsumexp(sim.masked_fill(self_mask, -1e9), 1, keepdim=True)
        positive = (labels[:, None] == labels[None]) & ~self_mask
        per_anchor = (logp * positive).sum(1) / positive.sum(1)
        return -per_anchor.mean()


def build():
    g = torch.Generator().manual_seed(70)
    labels = torch.cat([torch.arange(60) % 6, torch.tensor([7])])
    images = torch.randn(len(labels), 20, generator=g) + labels[:, None]
    return torch.utils.data.TensorDataset(images, labels), labels


dataset, labels = build()
torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 16))
criterion = SupCon()
opt = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for epoch in range(4):
    for x, y in torch.utils.data.DataLoader(dataset, batch_sampler=PairSampler(labels, 12, epoch)):
        loss = criterion(encoder(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
print("FINITE" if all(torch.isfinite(p).all() for p in encoder.parameters()) else "POISONED")
