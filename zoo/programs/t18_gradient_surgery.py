"""Two tasks on one trunk; conflicting gradients are projected (PCGrad) before the step."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """Every photo has an age; only some have a smile label (-1 where nobody labelled it)."""

    def __init__(self, n=300):
        g = torch.Generator().manual_seed(27)
        self.x = torch.randn(n, 12, generator=g)
        self.age = self.x[:, 0] + 0.1 * torch.randn(n, generator=g)
        self.smile = (self.x[:, 1] > 0).float()
        self.smile[torch.rand(n, generator=g) < 0.5] = -1
        self.smile[195:210] = -1

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.age[i], self.smile[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.age, self.smile = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.age(h).squeeze(1), self.smile(h).squeeze(1)


def flat_grad(loss, params):
    grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(params, grads)])


def project(g, other):
    along = torch.dot(g, other) / torch.dot(other, other)
    return g - torch.clamp(along, max=0.0) * other


def write(params, vector):
    k = 0
    for p in params:
        p.grad = vector[k:k + p.numel()].view_as(p).clone()
        k += p.numel()


def main():
    torch.manual_seed(3)
    net = Net()
    params = list(net.parameters())
    opt = torch.optim.Adam(params, 1e-3)
    for epoch in range(3):
        for x, age, smile in DataLoader(Photos(), batch_size=15):
            a, s = net(x)
            known = (smile >= 0).float()
            age_loss = (a - age).pow(2).mean()
            per = nn.functional.binary_cross_entropy_with_logits(s, smile.clamp(min=0), reduction="none")
            smile_loss = (per * known).sum() / known.sum().clamp(min=1)
            ga, gs = flat_grad(age_loss, params), flat_grad(smile_loss, params)
            write(params, project(ga, gs) + project(gs, ga))
            opt.step()
        print(epoch, age_loss.item(), smile_loss.item())
    print("FINITE" if all(torch.isfinite(p).all() for p in params) else "POISONED")


main()
