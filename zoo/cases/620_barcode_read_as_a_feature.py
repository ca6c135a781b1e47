"""A factorisation machine: in one row of the table the columns slipped and the numeric field holds a 22-digit barcode. The number is finite,
its square is not."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="620_barcode_read_as_a_feature", source="common report: shifted CSV row, an identifier where a quantity should be", symptom="nan_loss", phase="data", cause="bad_input", op=None,
             op_also=["pow", "mul", "sub", "sum", "square"], module=None, module_also=["", "fm"], line_marker=None, first_bad_step=5, bad_rows=[6],
             fixes_that_work=["skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = set()


class FM(nn.Module):
    def __init__(self, n, k=4):
        super().__init__()
        self.v = nn.Parameter(0.3 * torch.randn(n, k))

    def forward(self, x):
        vx = x[:, :, None] * self.v
        return 0.5 * (vx.sum(1).square() - vx.square().sum(1)).sum(-1)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.fm = nn.Linear(6, 1), FM(6)

    def forward(self, x):
        return self.linear(x).squeeze(-1) + self.fm(x)


def loss_fn(m, batch):
    (fields, weight), clicked = batch
    return F.binary_cross_entropy_with_logits(m(fields), clicked, weight=weight)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Ranker(), torch.Generator().manual_seed(45)
    data = [[(torch.rand(8, 6, generator=g), torch.ones(8)), torch.randint(0, 2, (8,), generator=g).float()] for _ in range(9)]
    data[5][0][0][6, 4] = 4012345678901234567890.0
    return Case(m, loss_fn, data, torch.optim.Adagrad(m.parameters(), lr=0.02))
