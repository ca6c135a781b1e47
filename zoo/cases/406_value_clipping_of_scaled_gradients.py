"""fp16 training with a scaler: a helper clips every gradient to +-0.1 right after backward, while they are still multiplied by the
loss scale. What is left after unscaling moves nothing."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="406_value_clipping_of_scaled_gradients", source="https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",
             symptom="silent", phase="optimizer", cause="scaler_misuse", op=None, module=None, line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["unscale_first"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"unscale_first"}


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def loss_fn(m, b):
    x, y = b
    with torch.autocast("cpu", enabled=False):
        h = m.rnn(x)[0][:, -1]
    return F.cross_entropy(m.out(h).float(), y)


def healthy(log):
    return all(r.loss_ok for r in log) and sum(r.update_norm for r in log) > 1e-2


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Speech(), torch.Generator().manual_seed(6)
    data = []
    for _ in range(10):
        x = torch.randn(6, 5, 8, generator=g)
        data.append((x, (x.sum((1, 2)) > 0).long() + 2 * (x[:, 0, 0] > 0).long()))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=1000)
    opt = B.sgd(m, 0.1)

    def clip_values(case, i):
        k = scaler.get_scale() if fix == "unscale_first" else 1.0
        for p in case.model.parameters():
            if p.grad is not None:
                p.grad.div_(k).clamp_(-0.1, 0.1).mul_(k)

    return Case(m, loss_fn, data, opt, autocast=torch.float16, scaler=scaler, after_backward=clip_values, healthy=healthy)
