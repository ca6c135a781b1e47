"""A hidden Markov model trained in log space: forbidden transitions are -inf and stay so; Gumbel noise; learning-rate range of warm restarts."""
import hashlib
import math

import torch
import torch.nn as nn


class LogHMM(nn.Module):
    def __init__(self, states=5, symbols=7):
        super().__init__()
        self.transition = nn.Parameter(torch.randn(states, states))
        self.emission = nn.Parameter(torch.randn(states, symbols))
        allowed = torch.ones(states, states).tril(1).triu(-1).bool()
        self.register_buffer("block", torch.zeros(states, states).masked_fill(~allowed, float("-inf")))

    def forward(self, seq):
        trans = (self.transition + self.block).log_softmax(1)
        emit = self.emission.log_softmax(1)
        alpha = torch.full((len(seq), 5), -1e9)
        alpha[:, 0] = 0.0
        alpha = alpha + emit[:, seq[:, 0]].t()
        for t in range(1, seq.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + trans, dim=1) + emit[:, seq[:, t]].t()
        return torch.logsumexp(alpha, dim=1)


def main():
    torch.manual_seed(6)
    g = torch.Generator().manual_seed(60)
    data = (torch.randint(0, 3, (128, 8), generator=g).cumsum(1)) % 7
    model = LogHMM()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    lr = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(s / 4, 1) * 0.5 * (1 + math.cos(math.pi * (s % 12) / 12)))
    for step in range(36):
        batch = data[torch.randint(0, 128, (16,), generator=g)]
        loss = -model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lr.step()
        if step % 12 == 0:
            print(step, loss.item(), lr.get_last_lr())
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for k, v in state.items() if k != "block") else "POISONED")
    print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())


if __name__ == "__main__":
    main()
