"""After a restart SGD's momentum buffer of one layer comes from a checkpoint that was taken during a blow-up: finite but
1e6 times too large; weights, loss and gradients of the step are normal, its update is not."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1353_resume_momentum_from_other_run", source="commonly reported; no link was looked up",
             symptom="spike", phase="state", cause="poisoned_state", op=None, module="trunk.fc2", line_marker=None,
             tensor="trunk.fc2.weight", tensor_kind="optimizer", first_bad_step=7, bad_rows=None,
             fixes_that_work=["reset_optimizer", "reset_bad_state"], fixes_that_do_not=["clip", "skip_batch"])
FIXES = {"reset_optimizer", "reset_bad_state"}


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.trunk, s.out = B.mlp(8, 24, 24, nn.SiLU), nn.Linear(24, 1)

    def forward(s, x):
        return s.out(torch.tanh(s.trunk(x)))


def loss_fn(m, b):
    return F.mse_loss(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, data = Net(), B.xy(13, bs=10)

    def resume(case, i):
        if i == 7:
            st = case.optimizer.state[case.model.trunk.fc2.weight]
            if fix == "reset_optimizer":
                case.optimizer.state.clear()
            elif fix == "reset_bad_state":
                st["momentum_buffer"].zero_()
            else:
                st["momentum_buffer"].mul_(1e6)

    def healthy(log):
        return all(r.loss_ok for r in log) and max(r.update_norm for r in log[7:]) < 5 * max(r.update_norm for r in log[:7])

    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9), before_step=resume, healthy=healthy)
