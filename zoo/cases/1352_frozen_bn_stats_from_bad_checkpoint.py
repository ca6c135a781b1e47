"""Fine-tuning with frozen BatchNorm: at step 5 statistics are reloaded from a checkpoint that was written after a NaN batch."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="1352_frozen_bn_stats_from_bad_checkpoint", source="https://github.com/ultralytics/ultralytics/issues/24615",
             symptom="nan_loss", phase="state", cause="poisoned_state", op=None, module="layer2.bn", line_marker=None,
             tensor="layer2.bn.running_var", tensor_kind="buffer", first_bad_step=5, bad_rows=None,
             fixes_that_work=["restore_buffers", "reset_bad_state"], fixes_that_do_not=["clip", "skip_batch", "lr_down"])
FIXES = {"restore_buffers", "reset_bad_state"}


class Stage(nn.Module):
    def __init__(s, i, o):
        super().__init__()
        s.conv, s.bn = nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o)

    def train(s, mode=True):
        super().train(mode)
        s.bn.eval()
        return s

    def forward(s, x):
        return F.relu(s.bn(s.conv(x)))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.layer1, s.layer2, s.fc = Stage(1, 6), Stage(6, 6), nn.Linear(6, 4)

    def forward(s, x):
        return s.fc(s.layer2(s.layer1(x)).mean([2, 3]))


def loss_fn(m, b):
    return F.cross_entropy(m(b["x"]), b["y"])


def make(seed=0, fix=None):
    m, g = Net(), torch.Generator().manual_seed(32)
    data = [dict(x=torch.randn(5, 1, 8, 8, generator=g), y=torch.randint(0, 4, (5,), generator=g)) for _ in range(9)]

    def reload(case, i):
        if i == 5 and fix != "restore_buffers":
            v = case.model.layer2.bn.running_var
            v[2] = float("nan")
            if fix == "reset_bad_state":
                torch.nan_to_num_(v, nan=1.0)

    return Case(m, loss_fn, data, B.adam(m), before_step=reload)
