"""Raw features around 50 and SGD with a large rate: the first updates push all ReLU units of the first layer below zero for every input. From then on, momentum apart, only the bias of the
last layer moves."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1119_first_steps_kill_relu", source="constructed (textbook: large rate on unscaled inputs)", symptom="silent", phase="forward",
             cause="dead_relu", op="relu", module="act", bad_rows=None, line_marker="# <-- origin", first_bad_step=2, knowable_at=2,
             static_visible=dict(source="no", objects="no: after the first steps yes (all activations of a layer are 0)"),
             quality_limit=0.8, margin=1.5, fixes_that_work=["standardise"], fixes_that_do_not=["longer"])
FIXES = {"standardise"}


def signal(case, i, r):
    """a ReLU layer gives 0 for every input of the batch"""
    m, b = case.model, case.batches[max(i, 0)]
    with torch.no_grad():
        h = m.act(m.fc1(b["x"]))
        return not bool(h.any()) or not bool(m.act(m.fc2(h)).any())


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test, data = S.Classifier(), S.cat(S.classes(16, seed=99, shift=50.0)), S.classes(80, shift=50.0)
    if fix == "standardise":
        for b in [*data, test]:
            b["x"] = (b["x"] - 50.0) / 1.3
    return SCase(m, S.ce, data, torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), quality=lambda c: S.heldout_ce(m, test))  # <-- origin
