"""clip_grad_norm_ is called on gradients that still carry the scale of 65536, so what is left after unscale is 1.5e-5 long: training stands still."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="504_accumulate_then_clip_scaled", source="written for this set, after a kind of report often seen: accumulate then clip scaled",
             symptom="silent", phase="optimizer", cause="scaler_misuse", op=None, module=None, line_marker=None, first_bad_step=1, latent_from=0, bad_rows=None,
             fixes_that_work=["unscale_first"], fixes_that_do_not=["skip_batch", "zero_nan_grads", "lr_down"])
FIXES = {"unscale_first"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv1d(2, 12, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(48, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    batches = []
    for _ in range(20):
        x = torch.randn(8, 2, 32)
        batches.append({"signal": x, "label": 3 + x[:, 0].mean(-1, keepdim=True)})

    def loss_fn(net, b):
        return F.smooth_l1_loss(net(b["signal"]).float(), b["label"])

    return Case(net, loss_fn, batches, opt, autocast=torch.bfloat16, scaler=torch.amp.GradScaler("cpu", init_scale=65536.0), accumulation=2, clip_norm=1.0,
                clip_before_unscale=fix != "unscale_first", healthy=lambda log: log[-1].loss < 0.7 * log[0].loss,
                extra={"first_bad": lambda log: next(r.step for r in log if r.stepped)})
