"""Truncated back-propagation through a long sensor log; the hidden state goes on from chunk to chunk. Chunks with a bad loss are skipped."""
import torch
import torch.nn as nn


def sensor_log(n=6000):
    g = torch.Generator().manual_seed(2)
    t = torch.arange(n)
    x = torch.stack([torch.sin(t / 11.0), torch.cos(t / 7.0)], 1) + 0.05 * torch.randn(n, 2, generator=g)
    x[2650, 1] = float("nan")  # BUG
    y = torch.roll(torch.sin(t / 11.0), -3)
    return x.view(10, 600, 2), y.view(10, 600, 1)


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(2, 20, batch_first=True), nn.Linear(20, 1)
        self.h = None

    def forward(self, x):
        y, h = self.rnn(x, self.h)
        self.h = h.detach()
        return self.out(y)


def main():
    torch.manual_seed(6)
    x, y = sensor_log()
    net = Stateful()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    done, skipped = 0, []
    for k in range(0, 600, 20):
        loss = ((net(x[:, k:k + 20]) - y[:, k:k + 20]) ** 2).mean()
        if torch.isnan(loss):
            skipped.append(k // 20)
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
        done += 1
        if done % 5 == 0:
            print("chunk", k // 20, "loss", round(loss.item(), 5))
    print(done, "chunks learned,", len(skipped), "skipped:", skipped)
    print("FINITE" if all(torch.isfinite(p).all() for p in net.parameters()) else "POISONED")


main()
