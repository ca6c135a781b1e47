"""Speech recognition with CTC; one clip is shorter than its transcript."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, n=120):
        g = torch.Generator().manual_seed(33)
        self.rows = []
        for i in range(n):
            frames = int(torch.randint(40, 60, (1,), generator=g))
            chars = int(torch.randint(4, 9, (1,), generator=g))
            if i == 74:
                frames = 9  # cut off by the recorder
                chars = 8
            self.rows.append((torch.randn(frames, 13, generator=g), torch.randint(1, 20, (chars,), generator=g)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    feats, texts = zip(*rows)
    return (pad_sequence(feats, batch_first=True), torch.tensor([len(f) for f in feats]),
            torch.cat(texts), torch.tensor([len(t) for t in texts]))


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(13, 32, 3, stride=2, padding=1)
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 20)

    def forward(self, x, lengths):
        h = torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.head(h).log_softmax(-1), (lengths + 1) // 2


def train():
    torch.manual_seed(4)
    model, ctc = Recogniser(), nn.CTCLoss(blank=0)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Clips(), batch_size=12, collate_fn=collate)
    for epoch in range(2):
        total = 0.0
        for feats, lengths, texts, text_lengths in loader:
            logp, out_lengths = model(feats, lengths)
            loss = ctc(logp.transpose(0, 1), texts, out_lengths, text_lengths)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            total += loss.item()
        print(epoch, total / len(loader))
    return model


m = train()
print("FINITE" if all(torch.isfinite(p).all() for p in m.parameters()) else "POISONED")
