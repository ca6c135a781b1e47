"""Binary cross-entropy by hand as in the docs of nn.BCELoss ("the log is clamped to -100"): the clamp comes after the log, so the
loss is a tame 100 and the gradient 0 * inf. One loud picture drives the sigmoid to exactly 0 or 1."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="601_bce_clamps_the_log_not_the_probability", source="https://github.com/pytorch/pytorch/issues/108618 (where instead of clamp, same mechanism)",
             symptom="nan_grad", phase="backward", cause="where_grad_trap", op="log", op_also=["div", "clamp", "clamp_min"], module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=[2], fixes_that_work=["clamp", "eps", "double_where", "skip_batch", "drop_rows"],
             fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clamp", "eps", "double_where"}


class SqueezeExciteTagger(nn.Module):
    def __init__(s, c=6, tags=3):
        super().__init__()
        s.conv = nn.Conv2d(2, c, 3, padding=1)
        s.se = nn.ModuleDict({"down": nn.Linear(c, 3), "up": nn.Linear(3, c)})
        s.tags = nn.Linear(c, tags)

    def forward(s, img):
        h = F.relu(s.conv(img))
        w = F.hardsigmoid(s.se["up"](F.relu(s.se["down"](h.mean([2, 3])))))
        return torch.sigmoid(s.tags((h * w[:, :, None, None]).mean([2, 3])))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    net, g = SqueezeExciteTagger(), torch.Generator().manual_seed(23)

    def safe_log(p):
        if fix == "clamp":
            return p.clamp_min(1e-6).log()
        if fix == "eps":
            return (p + 1e-6).log()
        if fix == "double_where":
            return torch.where(p > 0, torch.where(p > 0, p, torch.ones_like(p)).log(), torch.full_like(p, -100.0))
        return p.log().clamp(min=-100.0)  # <-- origin

    def loss_fn(net, b):
        p = net(b["img"])
        pos, neg = safe_log(p), safe_log(1 - p)
        return -(b["tags"] * pos + (1 - b["tags"]) * neg).mean()

    data = [{"img": torch.randn(5, 2, 6, 6, generator=g), "tags": (torch.rand(5, 3, generator=g) > 0.5).float()} for _ in range(9)]
    data[4]["img"][2] *= 4000.0
    return Case(net, loss_fn, data, torch.optim.RMSprop(net.parameters(), lr=1e-3))
