"""Images are standardised in the loop, each by its own deviation; image 41 is blank."""
# truth: op=div cause=DX201 samples=41

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(1)
        self.images = torch.rand(n, 1, 12, 12, generator=g)
        self.labels = torch.randint(0, 4, (n,), generator=g)
        self.images[41] = 0.0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 25, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 2)
        return self.fc(x.flatten(1))


def train(model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        data = (data - data.mean(dim=(1, 2, 3), keepdim=True)) / data.std(dim=(1, 2, 3), keepdim=True)  # BUG
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % 5 == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}] {loss.item():.6f}")


def main():
    torch.manual_seed(0)
    device = torch.device("cpu")
    train_loader = DataLoader(Digits(), batch_size=8, shuffle=True)
    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 3):
        train(model, device, train_loader, optimizer, epoch)
        scheduler.step()
    print("weights finite:", all(p.isfinite().all().item() for p in model.state_dict().values()))


if __name__ == "__main__":
    main()
