"""The checkpoint was written by a mixed-precision run whose loop never unscaled its gradients, so its SGD momentum is a thousand times
too large. Loss and gradients of the resumed run are fine; the first step throws the weights far away."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="923_momentum_of_a_scaled_run", source="written for this set after a common mistake; no single report",
             symptom="spike", phase="state", cause="poisoned_state", op=None, module=None, line_marker=None, tensor_kind="optimizer",
             first_bad_step=6, bad_rows=None, fixes_that_work=["reset_optimizer", "reset_bad_state"], fixes_that_do_not=["clip", "skip_batch", "zero_nan_grads"])
FIXES = {"reset_optimizer", "reset_bad_state"}


class Mixer(nn.Module):
    def __init__(s):
        super().__init__()
        s.tokens, s.channels, s.head = nn.Linear(6, 6), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(s, x):
        x = x + F.gelu(s.tokens(x.transpose(1, 2))).transpose(1, 2)
        x = x + F.gelu(s.channels(x))
        return s.head(x.mean(1))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Mixer(), torch.Generator().manual_seed(23)
    data = [dict(x=torch.randn(16, 6, 8, generator=g), y=torch.randint(0, 3, (16,), generator=g)) for _ in range(14)]

    def resume(case, i):
        if i != 6:
            return
        state = case.optimizer.state_dict()
        for st in state["state"].values():
            st["momentum_buffer"] = st["momentum_buffer"] * 1024.0
        case.optimizer.load_state_dict(state)
        if fix == "reset_optimizer":
            case.optimizer.state.clear()
        if fix == "reset_bad_state":
            for st in case.optimizer.state.values():
                st["momentum_buffer"].zero_()

    return Case(m, loss_fn, data, torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9), before_step=resume,
                healthy=lambda log: all(r.loss_ok for r in log) and max(r.loss for r in log) < 3 * max(r.loss for r in log[:6]))
