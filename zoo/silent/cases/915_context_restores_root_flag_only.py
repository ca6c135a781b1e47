"""A context manager for clean predictions calls model.eval() and puts back `model.training = was`: the flag of the root only. The root says it is training; dropout in the blocks stays off for the rest of the run."""
import contextlib, torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="915_context_restores_root_flag_only", source="constructed", symptom="silent", phase="loop", cause="eval_mode_in_training", op=None, module="blocks.0.drop", module_also=["blocks.1.drop"], bad_rows=None,
             line_marker="# <-- origin", first_bad_step=6, knowable_at=6, static_visible=dict(source="yes: assignment to .training of the root", objects="no: from step 6 on yes (root True, children False)"),
             quality_limit=1.5, margin=1.3, fixes_that_work=["train_call"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"train_call"}


class Res(nn.Module):
    def __init__(s, d, p):
        super().__init__()
        s.fc, s.drop = nn.Linear(d, d), nn.Dropout(p)

    def forward(s, x):
        return x + s.drop(F.mish(s.fc(x)))


class Net(nn.Module):
    def __init__(s, d=64):
        super().__init__()
        s.stem, s.blocks, s.out = nn.Linear(12, d), nn.ModuleList([Res(d, 0.6), Res(d, 0.6)]), nn.Sequential(nn.Dropout(0.6), nn.Linear(d, 4))

    def forward(s, x):
        x = s.stem(x)
        for b in s.blocks:
            x = b(x)
        return s.out(x)


def signal(case, i, r):
    """a training step whose dropout layers are in eval mode"""
    return bool(r) and r.stepped and bool(case.extra.get("drop_modes")) and not all(case.extra["drop_modes"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, extra = Net(), {}
    train, test = S.classes(5, noise=1.6), S.cat(S.classes(24, seed=99, noise=1.6))

    @contextlib.contextmanager
    def predicting(model):
        was = model.training
        model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            if fix:
                model.train(was)
            else:
                model.training = was  # <-- origin

    def step(case, b, i):
        if i and i % 6 == 0:                       # clean accuracy on the training batch, for the progress bar
            with predicting(m):
                extra["acc"] = float((m(b["x"]).argmax(-1) == b["y"]).float().mean())
        extra["drop_modes"] = [x.training for x in m.modules() if isinstance(x, nn.Dropout)]
        case.optimizer.zero_grad()
        loss = F.cross_entropy(m(b["x"]), b["y"])
        loss.backward()
        case.optimizer.step()
        return loss

    return SCase(m, S.ce, train * 24, torch.optim.Adamax(m.parameters(), lr=1e-2), step=step, extra=extra, quality=lambda c: S.heldout_ce(m, test))
