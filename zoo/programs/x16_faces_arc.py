"""Face verification with an additive angular margin; class centres are re-seeded after warm-up."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES, DIM = 10, 5


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 48), nn.PReLU(), nn.Linear(48, DIM))

    def forward(self, x):
        return F.normalize(self.net(x))


class ArcMargin(nn.Module):
    def __init__(self, scale=16.0, margin=0.3):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(CLASSES, DIM))
        self.scale, self.margin = scale, margin

    def reseed(self, embeddings, labels):
        with torch.no_grad():
            for c in range(CLASSES):
                own = embeddings[labels == c]
                self.centres[c] = own[own.sum(1).argmax()]

    def forward(self, embeddings, labels):
        cosine = embeddings @ F.normalize(self.centres).t()
        theta = torch.acos(cosine.clamp(-1.0, 1.0))
        target = F.one_hot(labels, CLASSES).bool()
        logits = torch.where(target, torch.cos(theta + self.margin), cosine)
        return self.scale * logits


def data(n=240):
    g = torch.Generator().manual_seed(77)
    labels = torch.arange(n) % CLASSES
    means = torch.randn(CLASSES, 20, generator=g) * 2
    return means[labels] + torch.randn(n, 20, generator=g), labels


def main():
    torch.manual_seed(8)
    x, y = data()
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=False)
    backbone, head = Embedder(), ArcMargin()
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.05, momentum=0.0)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        if epoch == 1:
            with torch.no_grad():
                head.reseed(backbone(x), y)
        for inputs, labels in loader:
            loss = criterion(head(backbone(inputs), labels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    state = {**backbone.state_dict(), **head.state_dict()}
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
