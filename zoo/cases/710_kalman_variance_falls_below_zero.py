"""A scalar Kalman filter inside a tracker, with the textbook update P - P*P/(P + R). One track starts with a vague prior (P = 1.5e6) and a
precise sensor: the difference is rounding noise, comes out negative, and the log of the next innovation variance is NaN."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="710_kalman_variance_falls_below_zero", source="textbook: covariance update loses positive definiteness (Joseph form); https://github.com/KalmanNet/KalmanNet_TSP/issues/23",
             symptom="nan_loss", phase="forward", cause="cancellation", op="log", module="filter", line_marker="# <-- origin", first_bad_step=6, bad_rows=[2],
             fixes_that_work=["clamp", "joseph", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "joseph"}


class KalmanNLL(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.log_q, self.log_r, self.fix = nn.Parameter(torch.tensor(-9.0)), nn.Parameter(torch.tensor(-4.0)), fix

    def forward(self, z, drift, p0, quality):
        r, q = self.log_r.exp() * quality, self.log_q.exp()
        mean, P, nll = z[:, 0], p0, 0.0
        for t in range(1, z.shape[1]):
            S = P + r
            nll = nll + torch.log(S) + (z[:, t] - mean).square() / S  # <-- origin
            gain = P / S
            mean = mean + gain * (z[:, t] - mean) + drift[:, t]
            P = P * r / S if self.fix == "joseph" else P - P * P / S
            P = (P.clamp_min(0.0) if self.fix == "clamp" else P) + q
        return 0.5 * nll / (z.shape[1] - 1)


class Tracker(nn.Module):
    def __init__(self, fix):
        super().__init__()
        self.drift, self.filter = nn.GRU(1, 4, batch_first=True), KalmanNLL(fix)
        self.out = nn.Linear(4, 1)

    def forward(self, z, p0, quality):
        drift = 0.1 * self.out(self.drift(z[..., None])[0]).squeeze(-1)
        return self.filter(z, drift, p0, quality)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Tracker(fix), torch.Generator().manual_seed(80)
    data = []
    for _ in range(9):
        data.append([torch.randn(5, 8, generator=g).cumsum(1) * 0.1, torch.full((5,), 1.0), torch.ones(5)])
    data[6][1][2], data[6][2][2] = 1.494e6, 0.01
    return Case(m, lambda m, b: m(*b).mean(), data, torch.optim.Adam(m.parameters(), lr=1e-3))
