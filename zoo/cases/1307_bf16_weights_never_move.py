"""Pure bf16 fine-tuning with SGD and a small learning rate: every update is below half an ulp of its weight, the weights
are bit for bit the same after the whole run."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1307_bf16_weights_never_move", source="https://github.com/pytorch/torchtune/issues/2254",
             symptom="silent", phase="optimizer", cause="lost_update", op=None, module=None, line_marker=None,
             first_bad_step=0, bad_rows=None, fixes_that_work=["fp32", "lr_up"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"fp32", "lr_up"}


class Conv(nn.Module):
    def __init__(s):
        super().__init__()
        s.c1, s.c2, s.fc = nn.Conv1d(4, 12, 3, bias=False), nn.Conv1d(12, 12, 3, bias=False), nn.Linear(12, 1, bias=False)

    def forward(s, x):
        return s.fc(torch.tanh(s.c2(torch.tanh(s.c1(x)))).mean(-1))


def make(seed=0, fix=None):
    dt = torch.float32 if fix == "fp32" else torch.bfloat16
    m, g = Conv(), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in m.parameters():                 # a trained model: no weight is tiny
            p.copy_(torch.where(p < 0, -1.0, 1.0) * (p.abs() + 0.1))
    m = m.to(dt)

    def loss_fn(m, b):
        return F.mse_loss(m(b["x"].to(dt)).float(), b["y"])

    data = [dict(x=torch.randn(6, 4, 12, generator=g), y=torch.randn(6, 1, generator=g)) for _ in range(10)]
    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.05 if fix == "lr_up" else 1e-5),
                healthy=lambda log: all(r.loss_ok and r.update_norm > 0 for r in log))
