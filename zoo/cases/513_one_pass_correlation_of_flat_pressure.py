"""Correlation loss by the one-pass formula n*Sxy - Sx*Sy in fp32: for a barometer that stood still n*Syy - Sy^2 is a small negative residue."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="513_one_pass_correlation_of_flat_pressure", source="written for this set, after a kind of report often seen: one pass correlation of flat pressure",
             symptom="nan_loss", phase="loss", cause="cancellation", op="sqrt", module=None, line_marker="# <-- origin", first_bad_step=3, bad_rows=[2],
             fixes_that_work=["two_pass", "clamp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"two_pass", "clamp"}
FLAT = 1013.3


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 24))

    def corr_loss(net, b):
        p, y = net(b["sensors"]), b["pressure"]
        n = y.shape[1]
        if fix == "two_pass":
            p, y = p - p.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
            den = torch.sqrt(p.pow(2).sum(1)) * torch.sqrt(y.pow(2).sum(1) + 1e-6)
            return 1 - ((p * y).sum(1) / den).mean()
        sx, sy = p.sum(1), y.sum(1)
        vx = n * (p * p).sum(1) - sx * sx
        vy = n * (y * y).sum(1) - sy * sy
        if fix == "clamp":
            vx, vy = vx.clamp(min=1e-6), vy.clamp(min=1.0)
        sd_y = vy.sqrt()  # <-- origin
        r = (n * (p * y).sum(1) - sx * sy) / (vx.sqrt() * sd_y)
        return 1 - r.mean()

    batches = [{"sensors": torch.randn(6, 10), "pressure": 1013.0 + 15 * torch.randn(6, 24)} for _ in range(7)]
    batches[3]["pressure"][2] = FLAT
    return Case(net, corr_loss, batches, torch.optim.Adam(net.parameters(), lr=1e-3))
