"""The network overrides train() to keep its stem in eval mode and forgets to pass `mode` on: def train(self, mode=True): super().train(); ... So eval() is train(). The validation folder
is read class by class without shuffling, and batch norm's running statistics are those of the last class whenever validation is over."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1312_train_override_ignores_mode", source="constructed; the override is the usual recipe for a frozen part", symptom="silent", phase="loop",
             cause="train_mode_in_eval", op=None, module="bn", module_also=["bn2"], bad_rows=None, line_marker="# <-- origin", first_bad_step=9, knowable_at=9,
             tensors=["bn.running_mean", "bn.running_var", "bn2.running_mean", "bn2.running_var"], tensor_kind="buffer",
             static_visible=dict(source="yes: mode is not passed on", objects="yes: model.eval() leaves batch norm in train mode"),
             quality_limit=0.1, margin=2.0, fixes_that_work=["pass_mode"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"pass_mode"}


class Net(nn.Module):
    fix = None

    def __init__(s):
        super().__init__()
        s.stem, s.fc1, s.bn, s.fc2, s.bn2, s.head = nn.Linear(20, 24), nn.Linear(24, 32), nn.BatchNorm1d(32), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 8)

    def train(s, mode=True):
        if s.fix:
            super().train(mode)
        else:
            super().train()  # <-- origin
        s.stem.eval()
        return s

    def forward(s, x):
        return s.head(torch.relu(s.bn2(s.fc2(torch.relu(s.bn(s.fc1(torch.tanh(s.stem(x)))))))))


def signal(case, i, r):
    """running statistics changed between two training steps"""
    return bool(r) and case.extra.get("before") is not None and not torch.equal(case.extra["before"], case.extra["after"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test, val = Net(), S.cat(S.classes(16, seed=99, d=20, k=8, sep=2.5)), S.cat(S.classes(200, seed=5, d=20, k=8, sep=2.5))
    m.fix = fix
    order = val["y"].argsort(stable=True)
    xs, ys = val["x"][order].split(16), val["y"][order].split(16)

    def validate(case):
        m.eval()
        case.extra["before"] = m.bn.running_mean.clone()
        with torch.no_grad():
            v = sum(float(F.cross_entropy(m(x), y)) for x, y in zip(xs, ys)) / len(xs)
        case.extra["after"] = m.bn.running_mean.clone()
        m.train()
        return v

    def after(case, i):
        if i % 10 == 9:
            case.extra["val"] = validate(case)

    def quality(c):                                # error as it will be in use: every part in eval mode
        for x in m.modules():
            x.training = False
        with torch.no_grad():
            return float((m(test["x"]).argmax(-1) != test["y"]).float().mean())

    return SCase(m, S.ce, S.classes(100, d=20, k=8, sep=2.5), torch.optim.Adam(m.parameters(), lr=5e-3), after_step=after, quality=quality)
