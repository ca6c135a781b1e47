"""A conv net resumed at step 4: the momentum buffer of one kernel was saved right after an overflow and holds inf. Loss and gradient
of the step are fine, the weight is not."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="433_momentum_restored_with_infinity", source="common report: resumed optimizer state with inf", symptom="nan_param", phase="state", cause="poisoned_state", op=None,
             module="body.2", line_marker=None, tensor="body.2.weight", tensor_kind="optimizer", first_bad_step=4, bad_rows=None,
             fixes_that_work=["reset_optimizer", "reset_bad_state"], fixes_that_do_not=["clip", "skip_batch", "lr_down", "zero_nan_grads"])
FIXES = {"reset_optimizer", "reset_bad_state"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.body(x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(5)
    data = [[torch.randn(6, 1, 8, 8, generator=g), torch.randint(0, 2, (6,), generator=g)] for _ in range(8)]
    opt = torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, nesterov=True)

    def resume(case, i):
        if i != 4:
            return
        state = case.optimizer.state_dict()
        state["state"][2]["momentum_buffer"] = state["state"][2]["momentum_buffer"].clone()
        state["state"][2]["momentum_buffer"][1, 2, 0, 0] = float("inf")
        case.optimizer.load_state_dict(state)
        if fix == "reset_optimizer":
            case.optimizer.state.clear()
        elif fix == "reset_bad_state":
            for s in case.optimizer.state.values():
                torch.nan_to_num_(s["momentum_buffer"], 0.0, 0.0, 0.0)

    return Case(m, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, opt, before_step=resume)
