"""Spoken digits with CTC."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DIGITS = 10


class Utterances(Dataset):
    def __init__(self, n=400):
        g = torch.Generator().manual_seed(17)
        self.codebook = torch.randn(DIGITS + 1, 8, generator=g)
        self.items = []
        for i in range(n):
            length = int(torch.randint(2, 5, (1,), generator=g))
            target = torch.randint(1, DIGITS + 1, (length,), generator=g)
            frames_per = 3
            if i == 266:
                target, frames_per = torch.tensor([7, 7, 7, 7]), 1  # spoken very fast
            frames = self.codebook[target].repeat_interleave(frames_per, 0)
            frames = frames + 0.1 * torch.randn(frames.shape, generator=g)
            self.items.append((frames, target))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    frames = nn.utils.rnn.pad_sequence([f for f, _ in items], batch_first=True)
    return frames, torch.tensor([len(f) for f, _ in items]), torch.cat([t for _, t in items]), torch.tensor([len(t) for _, t in items])


class Recogniser(nn.Module):
    def __init__(self, h=32):
        super().__init__()
        self.rnn = nn.GRU(8, h, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * h, DIGITS + 1)

    def forward(self, frames):
        return self.out(self.rnn(frames)[0]).log_softmax(-1)


class Experiment:
    def __init__(self):
        torch.manual_seed(3)
        self.model = Recogniser()
        self.loader = DataLoader(Utterances(), batch_size=10, shuffle=True, collate_fn=collate)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.ctc = nn.CTCLoss(blank=0)

    def run(self, epochs=2):
        for epoch in range(epochs):
            for k, (frames, n_frames, targets, n_targets) in enumerate(self.loader):
                log_probs = self.model(frames).transpose(0, 1)
                loss = self.ctc(log_probs, targets, n_frames, n_targets)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                if k % 10 == 0:
                    print(f"{epoch}/{k} ctc {loss.item():.4f}")
        print("FINITE" if all(torch.isfinite(t).all() for t in self.model.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    Experiment().run()
