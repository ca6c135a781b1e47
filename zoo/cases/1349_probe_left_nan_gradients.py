"""Between two steps a hessian probe back-propagates a loss of its own into the head and forgets zero_grad: NaN stays in
.grad, and the next (healthy) backward only adds to it."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1349_probe_left_nan_gradients", source="https://github.com/espnet/espnet/pull/3283",
             symptom="nan_grad", phase="state", cause="poisoned_state", op=None, module="head", line_marker=None,
             tensor="head.weight", tensor_kind="grad", first_bad_step=6, bad_rows=None,
             fixes_that_work=["zero_grad", "skip_batch"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"zero_grad"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.rnn, s.head = nn.GRU(5, 14, batch_first=True), nn.Linear(14, 2, bias=False)

    def forward(s, x):
        return s.head(s.rnn(x)[0].mean(1))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(4)
    data = [dict(x=torch.randn(6, 9, 5, generator=g), y=torch.randn(6, 2, generator=g)) for _ in range(10)]

    def probe(case, i):
        if i == 6:
            w = case.model.head.weight
            curv = torch.sqrt((w - w.detach()).pow(2).sum())
            curv.backward(inputs=[w])
            if fix:
                case.optimizer.zero_grad()

    return Case(m, loss_fn, data, B.adam(m), before_step=probe)
