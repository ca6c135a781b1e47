"""Attention pooling over a set; the set of sample 45 is empty. Weighted sampler, padded batches."""
# ruff: noqa: B007, B905
# truth: op=softmax|_softmax cause=DX206 samples=45

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, WeightedRandomSampler


class Pool(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.score = nn.Linear(d, 1)

    def forward(self, x, lengths):
        s = self.score(x).squeeze(-1)
        outside = torch.arange(x.size(1))[None] >= lengths[:, None]
        w = torch.softmax(s.masked_fill(outside, float("-inf")), dim=1)  # BUG
        return (w.unsqueeze(-1) * x).sum(1)


class SetClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, 8)
        self.pool = Pool(8)
        self.out = nn.Linear(8, 2)

    def forward(self, batch):
        sets, lengths = batch
        return self.out(self.pool(torch.relu(self.inp(sets)), lengths))


def collate(items):
    sets, labels = zip(*items)
    lengths = torch.tensor([len(s) for s in sets])
    return (pad_sequence(list(sets), batch_first=True), lengths), torch.tensor(labels)


torch.manual_seed(0)
samples = [(torch.randn(0 if i == 45 else 2 + i % 4, 3), i % 2) for i in range(60)]
sampler = WeightedRandomSampler(torch.ones(60), 60, replacement=False)
loader = DataLoader(samples, batch_size=10, sampler=sampler, collate_fn=collate)
model = SetClassifier()
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
for epoch in range(2):
    correct = total = 0
    for inputs, labels in loader:
        optimizer.zero_grad()
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        correct += (logits.argmax(1) == labels).sum().item()
        total += len(labels)
    print("accuracy", correct / total)
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
