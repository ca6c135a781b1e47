"""Cox partial likelihood as in DeepSurv: log(cumsum(exp(risk))) over patients sorted by survival time. One patient's lab values were not
standardised, his risk is about 100 and exp overflows."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="617_cox_risk_of_an_unscaled_patient", source="https://github.com/arturomoncadatorres/deepsurvk/issues/83",
             symptom="nan_loss", phase="loss", cause="exp_overflow", op="exp", module=None, line_marker="# <-- origin", first_bad_step=6, bad_rows=[2],
             fixes_that_work=["clamp", "logcumsumexp", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "logcumsumexp"}


def cox(risk, time, event, fix=None):
    order = time.argsort(descending=True)
    risk, event = risk[order], event[order]
    if fix == "logcumsumexp":
        return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum()
    if fix == "clamp":
        risk = risk.clamp(-20.0, 20.0)
    hazard = torch.exp(risk)  # <-- origin
    return -((risk - hazard.cumsum(0).log()) * event).sum() / event.sum()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g = nn.Sequential(nn.Linear(7, 16), nn.LeakyReLU(0.2), nn.Dropout(0.0), nn.Linear(16, 1)), torch.Generator().manual_seed(33)
    data = []
    for _ in range(10):
        x = torch.randn(8, 7, generator=g)
        event = (torch.rand(8, generator=g) > 0.4).float()
        event[0] = event[5] = 1.0
        data.append((x, torch.rand(8, generator=g) * 5 + 0.1, event))
    x, time, _ = data[6]
    with torch.no_grad():
        probe = net(1000.0 * torch.stack([x[2], -x[2]])).squeeze(-1)
    x[2] = x[2] * (120.0 * 1000.0 / float(probe.abs()[probe.argmax()])) * (1.0 if probe[0] > probe[1] else -1.0)
    time[2] = 9.0  # the longest survivor is in every risk set

    def loss_fn(net, batch):
        x, time, event = batch
        return cox(net(x).squeeze(-1), time, event, fix)

    return Case(net, loss_fn, data, torch.optim.Adam(net.parameters(), lr=1e-4))
