"""Multi-task training divides every task's loss by its running average, a buffer. The checkpoint the run is resumed from was saved
after a validation without any sample of task two, and its running average is NaN."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="819_task_weights_restored_with_nan", source="written for this set after a common mistake; no single report",
             symptom="nan_loss", phase="state", cause="poisoned_state", op=None, module="balancer", line_marker=None, tensor="balancer.running", tensor_kind="buffer",
             first_bad_step=6, bad_rows=None, fixes_that_work=["restore_buffers", "reset_bad_state"], fixes_that_do_not=["clip", "lr_down", "skip_batch"])
FIXES = {"restore_buffers", "reset_bad_state"}


class Balancer(nn.Module):
    def __init__(s, k):
        super().__init__()
        s.register_buffer("running", torch.ones(k))

    def forward(s, losses):
        with torch.no_grad():
            s.running.lerp_(losses, 0.1)
        return (losses / (s.running + 1e-3)).mean()


class MultiTask(nn.Module):
    def __init__(s):
        super().__init__()
        s.trunk = nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU())
        s.seg, s.depth, s.balancer = nn.Linear(24, 3), nn.Linear(24, 1), Balancer(2)

    def forward(s, x, c, y):
        h = s.trunk(x)
        return s.balancer(torch.stack([F.cross_entropy(s.seg(h), c), F.l1_loss(s.depth(h), y)]))


def make(seed=0, fix=None):
    m, data, g = MultiTask(), B.xy(11), torch.Generator().manual_seed(19)
    for b in data:
        b["c"] = torch.randint(0, 3, (6,), generator=g)

    def resume(case, i):
        if i == 6 and fix != "restore_buffers":
            state = {k: v.clone() for k, v in case.model.state_dict().items()}
            state["balancer.running"][1] = float("nan")
            case.model.load_state_dict(state)
            if fix == "reset_bad_state":
                case.model.balancer.running.fill_(1.0)

    return Case(m, lambda m, b: m(b["x"], b["c"], b["y"]), data, B.adam(m), before_step=resume)
