"""Speech with CTC: a transcript that is longer than its audio has no alignment."""
# ruff: noqa: B007, B905
# truth: op=ctc_loss|_ctc_loss cause= samples=18

import torch
import torch.nn as nn
from torch.utils.data import DataLoader


class Audio(torch.utils.data.Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.items = []
        for i in range(48):
            length = 12 if i != 18 else 4
            target = torch.randint(1, 6, (5,), generator=g)
            self.items.append((torch.randn(length, 7, generator=g), target))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    feats, targets = zip(*batch)
    feat_len = torch.tensor([len(f) for f in feats])
    target_len = torch.tensor([len(t) for t in targets])
    feats = nn.utils.rnn.pad_sequence(feats, batch_first=True)
    return feats, feat_len, torch.stack(targets), target_len


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(7, 12, batch_first=True)
        self.fc = nn.Linear(12, 6)

    def forward(self, x):
        return self.fc(self.rnn(x)[0]).log_softmax(-1)


torch.manual_seed(0)
model = Recogniser()
ctc = nn.CTCLoss(blank=0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train_loader = DataLoader(Audio(), batch_size=6, shuffle=True, collate_fn=collate)
for epoch in range(2):
    for feats, feat_len, targets, target_len in train_loader:
        log_probs = model(feats).transpose(0, 1)
        loss = ctc(log_probs, targets, feat_len, target_len)  # BUG
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
