"""A speech classifier subsamples time by 4 and pools every utterance over its own valid frames. A clip of three frames has none left:
mean over an empty slice."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="610_utterance_shorter_than_the_stride", source="common report: utterance shorter than the subsampling factor",
             symptom="nan_loss", phase="forward", cause="empty_reduction", op="mean", module="pool", line_marker="# <-- origin", first_bad_step=7, bad_rows=[3],
             fixes_that_work=["guard", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"guard"}


class MeanPool(nn.Module):
    at_least = 0

    def forward(self, h, lengths):
        pooled = []
        for frames, n in zip(h, lengths.tolist()):
            n = max(n, self.at_least)
            pooled.append(frames[:n].mean(0))  # <-- origin
        return torch.stack(pooled)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv1d(10, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv1d(16, 16, 3, stride=2, padding=1))
        self.rnn = nn.GRU(16, 12, batch_first=True)
        self.pool = MeanPool()
        self.out = nn.Linear(12, 5)

    def forward(self, feats, lengths):
        h, _ = self.rnn(self.subsample(feats.transpose(1, 2)).transpose(1, 2))
        return self.out(self.pool(h, torch.div(lengths, 4, rounding_mode="floor")))


def loss_fn(m, batch):
    feats, lengths, words = batch
    return F.cross_entropy(m(feats, lengths), words)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Recogniser(), torch.Generator().manual_seed(14)
    m.pool.at_least = 1 if fix == "guard" else 0
    data = [(torch.randn(4, 24, 10, generator=g), torch.randint(8, 25, (4,), generator=g), torch.randint(0, 5, (4,), generator=g)) for _ in range(11)]
    data[7][1][3] = 3
    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=2e-3), clip_norm=5.0)
