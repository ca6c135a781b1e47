"""validate() calls model.eval() once, then predict() for every batch; predict() is a helper that leaves the model in train mode when it returns. Only the
first validation batch runs in eval mode; batch norm absorbs the statistics of the (differently scaled) validation data from the others."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1212_predict_helper_switches_back", source="constructed", symptom="silent", phase="loop",
             cause="train_mode_in_eval", op=None, module="bn", bad_rows=None, line_marker="# <-- origin", first_bad_step=9, knowable_at=9,
             static_visible=dict(source="yes: train() in the helper called by validate", objects="no"),
             quality_limit=0.6, margin=1.4, fixes_that_work=["restore_mode"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"restore_mode"}


def signal(case, i, r):
    """batch-norm buffers change between two training steps"""
    return case.extra.get("bn_moved", False)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = S.Classifier(norm=True), S.cat(S.classes(16, seed=99))
    val = S.classes(12, seed=5, shift=3.0, scale=1.5)         # another site, another scanner

    def predict(x):
        was = m.training
        with torch.no_grad():
            z = m(x)
        m.train(was if fix else True)  # <-- origin
        return z

    def validate():
        m.eval()
        acc = sum(float((predict(b["x"]).argmax(-1) == b["y"]).float().mean()) for b in val) / len(val)
        m.train()
        return acc

    def after(case, i):
        if i % 10 == 9:
            mean = m.bn.running_mean.clone()
            case.extra["val"] = validate()
            case.extra["bn_moved"] = not torch.equal(mean, m.bn.running_mean)

    return SCase(m, S.ce, S.classes(60), torch.optim.Adam(m.parameters(), lr=1e-2), after_step=after, quality=lambda c: S.heldout_ce(m, test))
