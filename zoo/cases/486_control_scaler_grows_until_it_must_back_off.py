"""CONTROL: fp16 training in which the loss scaler doubles every two steps, overflows in mid-run, skips and backs off: normal life."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="486_control_scaler_grows_until_it_must_back_off", source="https://pytorch.org/docs/stable/amp.html", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[], nonfinite_in_passing=True)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    g = torch.Generator().manual_seed(5)
    data = [(torch.rand(6, 1, 10, 10, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(16)]
    case = Case(m, lambda m, b: F.cross_entropy(m(b[0]).float(), b[1]), data, B.adam(m, 1e-3), autocast=torch.float16, clip_norm=1.0,
                scaler=torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=2))
    case.healthy = lambda log: any(r.skipped for r in log) and sum(r.skipped for r in log) <= 5 and all(r.loss_ok and r.param_ok for r in log)
    return case
