"""CTC with zero_infinity: clips that are too short for their text give no gradient, as intended."""
import hashlib

import torch
import torch.nn as nn


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 24, batch_first=True)
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, 11)

    def forward(self, x):
        return self.out(self.norm(self.rnn(x)[0])).log_softmax(-1)


def make(n, g):
    for _ in range(n):
        frames = torch.randint(4, 20, (6,), generator=g)
        chars = torch.randint(2, 7, (6,), generator=g)
        yield torch.randn(6, 20, 8, generator=g), frames, torch.randint(1, 11, (6, 7), generator=g), chars


torch.manual_seed(5)
model = Acoustic()
opt = torch.optim.RAdam(model.parameters(), 3e-3)
loss_fn = nn.CTCLoss(zero_infinity=True)
for step, (x, frames, text, chars) in enumerate(make(40, torch.Generator().manual_seed(0))):
    loss = loss_fn(model(x).transpose(0, 1), text, frames, chars)
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_value_(model.parameters(), 0.5)
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
