"""Adam over lists of tensors, as on a GPU, with a model in half precision: eps rounds to zero, a channel that is always off has moments of zero,
and the update of its weights is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1006_foreach_adam_of_a_dead_channel", source="common report: NaN weights after the first Adam step in pure fp16", symptom="nan_param", phase="optimizer",
             cause="optimizer_eps_underflow", op="addcdiv", op_also=["foreach_addcdiv"], module="body", line_marker=None, first_bad_step=0, bad_rows=None,
             fixes_that_work=["eps", "fp32"], fixes_that_do_not=["clip", "lr_down", "skip_batch", "zero_nan_grads"])
FIXES = {"eps", "fp32"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    kind = torch.float32 if fix == "fp32" else torch.float16
    m = Net().to(kind)
    data = [{key: value.to(kind) for key, value in batch.items()} for batch in B.xy(8)]
    for batch in data:
        batch["x"][:, 3] = 0.0
    optimizer = torch.optim.Adam(m.parameters(), lr=1e-3, eps=1e-4 if fix == "eps" else 1e-8, foreach=True)
    return Case(m, lambda m, b: F.mse_loss(m(b["x"]).float(), b["y"].float()), data, optimizer)
