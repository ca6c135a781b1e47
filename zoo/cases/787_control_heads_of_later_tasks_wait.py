"""CONTROL: class-incremental learning: there is a head for every task from the start, and the heads of later tasks get no gradient until
their data comes; the head of a finished task is frozen. Momentum and decay of an idle head do nothing, its gradient is None."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
TRUTH = dict(id="787_control_heads_of_later_tasks_wait", source="common sight: multi-head continual learning", symptom="none", phase="none", cause="none", op=None, module=None, line_marker=None,
             first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
        self.heads = nn.ModuleDict({f"task{i}": nn.Linear(24, 3) for i in range(3)})

    def forward(self, x, task):
        return self.heads[f"task{task}"](self.body(x))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Net(), torch.Generator().manual_seed(95)
    data = []
    for i in range(18):
        x = torch.randn(8, 8, generator=g)
        data.append({"x": x, "y": (x[:, i // 6] > 0).long() + (x[:, i // 6] > 0.7).long(), "task": i // 6})

    def before_step(case, i):
        if i % 6 == 0 and i:
            m.heads[f"task{i // 6 - 1}"].requires_grad_(False)

    return Case(m, lambda m, b: F.cross_entropy(m(b["x"], b["task"]), b["y"]), data, torch.optim.SGD(m.parameters(), lr=5e-2, momentum=0.9, weight_decay=1e-4), before_step=before_step)
