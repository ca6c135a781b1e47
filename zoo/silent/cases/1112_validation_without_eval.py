"""validate() has no_grad but no model.eval(): after every epoch ten validation batches of another site (other mean and scale) run through batch norm in train mode and
overwrite its running statistics."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1112_validation_without_eval", source="constructed from the pattern with torch.no_grad() taken for eval()", symptom="silent", phase="loop",
             cause="train_mode_in_eval", op=None, module="bn", bad_rows=None, line_marker="# <-- origin", first_bad_step=9, knowable_at=9,
             tensors=["bn.running_mean", "bn.running_var"], tensor_kind="buffer",
             static_visible=dict(source="yes: validation function without eval()", objects="no: afterwards yes (num_batches_tracked grows faster than the steps)"),
             quality_limit=0.45, margin=1.5, fixes_that_work=["eval"], fixes_that_do_not=["lr_up", "lr_down", "longer"])
FIXES = {"eval"}


def signal(case, i, r):
    """between two steps batch norm has seen batches that no step has seen"""
    case.extra["steps"] = case.extra.get("steps", 0) + (r.events.count("step") if r else 0)
    return int(case.model.bn.num_batches_tracked) > case.extra["steps"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(norm=True, drop=0.1), S.cat(S.classes(16, seed=99))
    val = S.classes(10, seed=5, shift=4.0, scale=3.0)

    def validate():
        if fix:
            m.eval()
        with torch.no_grad():
            v = sum(float(S.ce(m, b)) for b in val) / len(val)  # <-- origin
        m.train()
        return v

    def after(case, i):
        if (i + 1) % 10 == 0:
            case.extra["val"] = validate()

    return SCase(m, S.ce, S.classes(60), torch.optim.Adam(m.parameters(), lr=1e-2), after_step=after, quality=lambda c: S.heldout_ce(m, test))
