"""Every parameter has a hook that turns NaN gradients into zeros. One batch has no valid frame (0/0 in the loss): the gradients
are scrubbed, yet RMSprop's momentum buffer still changes the weights as if the batch had been seen."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="235_tensor_hooks_scrub_gradients", source="https://github.com/facebookresearch/mmf/issues/893",
             symptom="silent", phase="optimizer", cause="stale_momentum", op=None, module=None, line_marker=None, nonfinite_in_passing=True, first_bad_step=6, bad_rows=None,
             fixes_that_work=["true_skip", "skip_batch", "guard"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"true_skip", "guard"}


class FrameNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.inp, s.cell, s.out = nn.Linear(4, 10), nn.GRUCell(10, 10), nn.Linear(10, 2)

    def forward(s, x):
        h, ys = torch.zeros(len(x), 10), []
        for t in range(x.shape[1]):
            h = s.cell(torch.relu(s.inp(x[:, t])), h)
            ys.append(s.out(h))
        return torch.stack(ys, 1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = FrameNet()

    def loss_fn(m, b):
        err = (m(b["x"]) - b["y"]).abs().mean(-1) * b["valid"]
        n = b["valid"].sum()
        return err.sum() / (n.clamp_min(1) if fix == "guard" else n)

    if fix != "true_skip":
        for p in m.parameters():
            p.register_hook(lambda g: torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0))

    def healthy(log):
        quiet = all(r.update_norm == 0 for r in log if not r.loss_ok)
        return quiet and all(r.param_ok and r.state_ok for r in log)

    g = torch.Generator().manual_seed(8)
    data = [dict(x=torch.randn(3, 5, 4, generator=g), y=torch.randn(3, 5, 2, generator=g), valid=(torch.rand(3, 5, generator=g) > 0.2).float()) for _ in range(10)]
    data[6]["valid"].zero_()
    opt = torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.9)
    return Case(m, loss_fn, data, opt, skip_nonfinite="grad" if fix == "true_skip" else None, healthy=healthy,
                extra=dict(first_bad=lambda log: next((r.step for r in log if not r.loss_ok and r.update_norm > 0), None)))
