"""Raw sensor counts (about 500) feed a sigmoid layer. Every unit is at 0 or 1 for every input, whatever the reading: the features are constants and the
gradient of the first layer is nil."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1220_sensor_offset_saturates_sigmoid", source="constructed", symptom="silent", phase="forward",
             cause="saturated_activation", op="sigmoid", module="act", module_also=["fc1"], bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="no", objects="no: hint from the data (mean 500)"),
             quality_limit=0.8, margin=1.4, fixes_that_work=["standardise"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"standardise"}


def signal(case, i, r):
    """nearly all outputs of the first sigmoid are within 1e-3 of 0 or 1"""
    if i < 0:
        return False
    with torch.no_grad():
        a = torch.sigmoid(case.model.fc1(case.batches[i]["x"]))
    return float(((a < 1e-3) | (a > 1 - 1e-3)).float().mean()) > 0.9


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, raw = S.Classifier(act=nn.Sigmoid), dict(shift=500.0, scale=20.0)
    data, test = S.classes(80, **raw), S.cat(S.classes(16, seed=99, **raw))  # <-- origin
    if fix:
        for b in data + [test]:
            b["x"] = (b["x"] - 500.0) / 20.0
    return SCase(m, S.ce, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.heldout_ce(m, test))
