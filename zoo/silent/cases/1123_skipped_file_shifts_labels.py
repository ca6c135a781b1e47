"""One unreadable file is skipped while the features are read, but its label stays in the list: from there on every row has the label of its neighbour."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1123_skipped_file_shifts_labels", source="constructed from the pattern: two lists, one of them filtered", symptom="silent", phase="data",
             cause="label_shift", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=-1,
             static_visible=dict(source="yes: features filtered, labels not", objects="no: lengths differ by one before zip"),
             quality_limit=0.5, margin=2.0, fixes_that_work=["filter_both"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"filter_both"}


def signal(case, i, r):
    """the two lists that were zipped have different lengths"""
    return len(case.extra["features"]) != len(case.extra["labels"])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, pool, test = S.Classifier(), S.cat(S.classes(61)), S.cat(S.classes(16, seed=99))
    readable = [k for k in range(len(pool["y"])) if k != 3]
    feats = [pool["x"][k] for k in readable]
    labels = [pool["y"][k] for k in (readable if fix else range(len(pool["y"])))]  # <-- origin
    rows = list(zip(feats, labels))
    data = [{"x": torch.stack([r[0] for r in rows[j:j + 16]]), "y": torch.stack([r[1] for r in rows[j:j + 16]])} for j in range(0, 960, 16)]
    return SCase(m, S.ce, data, torch.optim.Adam(m.parameters(), lr=5e-3), extra={"features": feats, "labels": labels},
                 quality=lambda c: S.heldout_ce(m, test))
