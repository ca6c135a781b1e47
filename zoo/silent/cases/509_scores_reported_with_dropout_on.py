"""evaluate() is decorated with no_grad and that is taken for eval mode: the scores that go into the table are measured with 60 percent of the units
switched off."""
import copy, torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="509_scores_reported_with_dropout_on", source="constructed: no_grad mistaken for eval", symptom="silent", phase="loop", cause="train_mode_in_eval", op=None,
             module="drop", bad_rows=None, line_marker="# <-- origin", first_bad_step=9, knowable_at=9,
             static_visible=dict(source="yes: evaluate() never calls eval()", objects="no"),
             quality_limit=1e-6, fixes_that_work=["eval_mode"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"eval_mode"}


def signal(case, i, r):
    """two evaluations of the same weights on the same data would differ: the model was in train mode under no_grad"""
    return i >= 0 and bool(case.extra.get("mode"))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, val = S.Classifier(h=64, drop=0.6), S.classes(6, seed=5)
    seen = []
    m.drop.register_forward_hook(lambda mod, a, o: seen.append(mod.training) if not torch.is_grad_enabled() else None)

    @torch.no_grad()
    def evaluate():
        right = n = 0
        for b in val:
            right += int((m(b["x"]).argmax(-1) == b["y"]).sum())  # <-- origin
            n += len(b["y"])
        return right / n

    def after(case, i):
        if i % 10 == 9:
            if fix:
                m.eval()
            case.extra.setdefault("table", []).append(evaluate())
            case.extra["mode"] = seen[-1]
            m.train()
            case.extra.setdefault("kept", []).append(copy.deepcopy(m.state_dict()))

    def quality(c):                                # mean distance between reported accuracy and that of the same weights in eval mode
        twin, all_ = S.Classifier(h=64, drop=0.6), S.cat(val)
        d = 0.0
        for acc, sd in zip(c.extra["table"], c.extra["kept"]):
            twin.load_state_dict(sd)
            d += abs(acc - (1 - S.heldout_err(twin, all_)))
        return d / len(c.extra["table"])

    return SCase(m, S.ce, S.classes(60), torch.optim.Adam(m.parameters(), lr=5e-3), after_step=after, quality=quality)
