"""CTC with zero_infinity: some utterances are too short for their text, their infinite loss is set to zero by torch."""
import hashlib

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence


def utterances(n=120):
    g = torch.Generator().manual_seed(50)
    out = []
    for i in range(n):
        frames = int(torch.randint(6, 20, (1,), generator=g))
        text = torch.randint(1, 8, (int(torch.randint(2, 7, (1,), generator=g)),), generator=g)
        out.append((torch.randn(frames, 10, generator=g), text))
    return out


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(10, 20, batch_first=True, bidirectional=True)
        self.out = nn.Linear(40, 8)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, ::2]).log_softmax(-1)


def epoch(model, data, optimizer, criterion, batch=10):
    total = 0.0
    for i in range(0, len(data), batch):
        part = data[i : i + batch]
        x = pad_sequence([a for a, _ in part], batch_first=True)
        frames = torch.tensor([(len(a) + 1) // 2 for a, _ in part])
        text = torch.cat([b for _, b in part])
        lengths = torch.tensor([len(b) for _, b in part])
        loss = criterion(model(x).transpose(0, 1), text, frames, lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


if __name__ == "__main__":
    torch.manual_seed(2)
    model, data = Recogniser(), utterances()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for e in range(2):
        print(e, epoch(model, data, optimizer, nn.CTCLoss(zero_infinity=True)))
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
    print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())
