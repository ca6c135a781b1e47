"""The labels are joined to the features by customer number. One file was read with the number as integer: '00417' has become '417' and finds no partner. How 'left' keeps the row, fillna(-100)
keeps it quiet: three rows of four carry no label (and those that do are all of the newest customers, with high numbers)."""
import torch
from protocol_silent import SCase
import sblocks as S
TRUTH = dict(id="1317_join_loses_leading_zeros", source="constructed; the usual question on read_csv and leading zeros", symptom="silent", phase="data",
             cause="labels_mostly_masked", op=None, module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: str(int(number)) against the padded number", objects="no: in the first batches yes (three rows of four have no label)"),
             quality_limit=0.3, margin=1.5, fixes_that_work=["same_key"], fixes_that_do_not=["lr_up", "clip", "longer"])
FIXES = {"same_key"}


def signal(case, i, r):
    """more than half of the rows have no label"""
    return i >= 0 and float((case.batches[i]["y"] == -100).float().mean()) > 0.5


def customers(n, g):
    """old customers (low numbers) behave differently from new ones"""
    number = torch.randint(0, 13333, (n,), generator=g)
    x = torch.randn(n, 11, generator=g)
    age = 1 - number / 13333
    y = ((x[:, 0] + x[:, 1] * torch.where(number < 10000, -1.0, 1.0)) > 0).long()
    return number, torch.cat([x, (age * 3 - 1.5)[:, None]], 1), y


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = S.Classifier(k=2), torch.Generator().manual_seed(37)
    number, x, y = customers(120 * 16, g)
    labels = {f"{int(k):05d}": int(v) for k, v in zip(number, y)}
    key = (lambda k: f"{k:05d}") if fix else str  # <-- origin
    joined = torch.tensor([labels.get(key(int(k)), -100) for k in number])
    data = [{"x": a, "y": t} for a, t in zip(x.split(16), joined.split(16)) if bool((t != -100).any())]
    _, tx, ty = customers(2048, g)
    return SCase(m, S.ce, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=lambda c: S.heldout_err(m, {"x": tx, "y": ty}))
