"""Inputs are raw pixel values (0 to 255) and the hidden units are sigmoids: every unit sits at 0 or 1 for every input, the first layer gets no gradient to speak of."""
import torch, torch.nn as nn
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1120_pixels_into_sigmoid", source="constructed (textbook: ToTensor / division by 255 forgotten)", symptom="silent", phase="forward",
             cause="saturated_activation", op="sigmoid", module="act", bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="no: no division by 255", objects="yes: all units at 0 or 1 for the first batch"),
             quality_limit=0.5, margin=1.8, fixes_that_work=["normalise"], fixes_that_do_not=["lr_up", "clip"])
FIXES = {"normalise"}


def pixels(n, seed=0):
    out = S.classes(n, seed=seed)
    for b in out:
        b["x"] = (128 + 30 * b["x"]).clamp(0, 255).round()
    return out


def signal(case, i, r):
    m, b = case.model, case.batches[max(i, 0)]
    with torch.no_grad():
        h = m.act(m.fc1(b["x"]))
        return float(((h < 0.01) | (h > 0.99)).float().mean()) > 0.9


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, data, test = S.Classifier(act=nn.Sigmoid), pixels(80), S.cat(pixels(16, seed=99))
    if fix:
        for b in [*data, test]:
            b["x"] = (b["x"] / 255 - 0.5) / 0.15
    return SCase(m, S.ce, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.heldout_ce(m, test))  # <-- origin
