"""Every third step the loop watches the loss on another scanner's images, without eval(): batch norm's running statistics are more and more those of
the other scanner. Training loss (batch statistics) shows nothing; the exported model is wrong on its own scanner."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="508_second_scanner_in_the_statistics", source="constructed; neighbour zoo 516 is the NaN form", symptom="silent", phase="loop",
             cause="train_mode_in_eval", op=None, module="bn", bad_rows=None, line_marker="# <-- origin", first_bad_step=2, knowable_at=2,
             tensors=["bn.running_mean", "bn.running_var"], static_visible=dict(source="yes: no eval() before the watch loop", objects="no"),
             quality_limit=0.8, margin=1.6, fixes_that_work=["eval_and_back"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"eval_and_back"}


def signal(case, i, r):
    """batch norm counted more batches than the loop trained"""
    return i >= 0 and int(case.model.bn.num_batches_tracked) > i + 1


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m = S.Classifier(norm=True)
    other, test = S.classes(8, seed=31, shift=5.0, scale=2.0), S.cat(S.classes(16, seed=99))

    def watch(case):
        if fix:
            m.eval()
        with torch.no_grad():
            v = sum(float(S.ce(m, b)) for b in other) / len(other)  # <-- origin
        m.train()
        case.extra.setdefault("other", []).append(v)

    def after(case, i):
        if i % 3 == 2:
            watch(case)

    return SCase(m, S.ce, S.classes(90), torch.optim.Adam(m.parameters(), lr=5e-3), after_step=after, quality=lambda c: S.heldout_ce(m, test))
