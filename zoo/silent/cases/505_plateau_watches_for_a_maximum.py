"""ReduceLROnPlateau(mode='max') was written for accuracy and is now fed the validation loss: each improvement counts as a bad epoch and the rate is
divided by ten again and again."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="505_plateau_watches_for_a_maximum", source="constructed from ReduceLROnPlateau(mode=) misuse", symptom="silent", phase="loop",
             cause="lr_zero", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=12, knowable_at=11,
             static_visible=dict(source="yes: mode='max' and a loss", objects="no: the scheduler says mode 'max', what it is fed is not known before the run"),
             quality_limit=0.6, margin=1.4, fixes_that_work=["mode_min"], fixes_that_do_not=["clip", "lr_down"])
FIXES = {"mode_min"}


def signal(case, i, r):
    """the rate was cut although the watched loss is the best so far"""
    h = case.extra.setdefault("hist", [])
    lr = case.optimizer.param_groups[0]["lr"]
    cut = lr < case.extra.get("lr", lr)
    case.extra["lr"] = lr
    return cut and len(h) > 2 and h[-1] <= min(h)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, val, test = S.Classifier(h=48), S.cat(S.classes(6, seed=7)), S.cat(S.classes(16, seed=99))
    opt = torch.optim.Adam(m.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, mode="min" if fix else "max", factor=0.1, patience=1)

    def step(case, b, i):
        opt.zero_grad(set_to_none=True)
        loss = S.ce(m, b)
        loss.backward()
        opt.step()
        return loss

    def after(case, i):
        if i % 4 == 3:
            m.eval()
            with torch.no_grad():
                v = float(S.ce(m, val))
            m.train()
            case.extra.setdefault("hist", []).append(v)
            sched.step(v)  # <-- origin

    return SCase(m, S.ce, S.classes(120), opt, scheduler=sched, step=step, after_step=after, quality=lambda c: S.heldout_ce(m, test))
