"""drop_last=False: the last batch of the epoch holds one sample, and the unbiased variance over the batch of one sample is NaN."""
import torch
from torch import nn
from protocol import Case

TRUTH = dict(id="522_last_batch_of_one", source="written for this set, after a kind of report often seen: nan at the end of the epoch, batch of one", symptom="nan_loss",
             phase="forward", cause="empty_reduction", op="var", op_also=["std", "var_mean"], module="whiten", line_marker="# <-- origin", first_bad_step=5, bad_rows=None,
             fixes_that_work=["biased", "skip_batch"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"biased"}


class Whiten(nn.Module):
    def __init__(self, unbiased=True):
        super().__init__()
        self.unbiased = unbiased

    def forward(self, h):
        mu = h.mean(dim=0)
        sigma2 = h.var(dim=0, unbiased=self.unbiased)  # <-- origin
        return (h - mu) * torch.rsqrt(sigma2 + 1e-5)


class Regressor(nn.Module):
    def __init__(self, unbiased):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.whiten = Whiten(unbiased)
        self.fc2 = nn.Linear(16, 1)

    def forward(self, x):
        return self.fc2(torch.relu(self.whiten(self.fc1(x))))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    from torch.utils.data import DataLoader, TensorDataset
    x = torch.randn(81, 8)
    y = x[:, :1] - x[:, 1:2] ** 2
    epoch = list(DataLoader(TensorDataset(x, y), batch_size=16))
    net = Regressor(fix != "biased")
    return Case(net, lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), epoch + epoch[:3], torch.optim.SGD(net.parameters(), lr=0.01))
