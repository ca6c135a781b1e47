"""A state was to be loaded into a model, and no weight of it was.

What it sees
    A state was loaded with `strict=False`, none of its names are those of the model, and with another prefix all of
    its names and shapes are. At the first update the weights are still not those of the state. Or the state that a
    model is to go back to holds the very memory of the model, which was trained on since: loading it changes nothing.

Why it hurts
    The training begins with random weights that are taken for trained ones, or ends with the last weights that are
    taken for the best ones. Nothing is printed.

Smallest example
    model.load_state_dict(torch.load("encoder.pt"), strict=False)     # names begin with "module."
    # fixed
    state = {name.removeprefix("module."): value for name, value in torch.load("encoder.pt").items()}
    model.load_state_dict(state)

What to do
    Rename the keys, and look at what `load_state_dict` returns. Keep a copy of the best weights:
    `copy.deepcopy(model.state_dict())`.

Safety
    It changes nothing. It is seen under `steady run`. A state of which a part was loaded, one whose names fit with no
    prefix, one that is loaded later under the right names, and a state that is loaded where it was just taken are not
    reported.

References
    https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
"""

from __future__ import annotations

from .....records import Finding
from .....records.rules import Rule
from ...loop_record import LoopRecord, UpdateSeen
from ..loop_finding import loop_finding

RULE = Rule("SY467", "nothing_loaded", "A state was to be loaded into a model, and no weight of it was.")


def judge(record: LoopRecord) -> Finding | None:
    """Pure."""
    if not record.not_loaded:
        return None
    fix = "rename the keys of the state, or keep a copy of it: copy.deepcopy(model.state_dict())"
    return loop_finding(RULE, record, record.not_loaded, fix=fix, phase="state")


def _record(not_loaded: str) -> LoopRecord:
    record = LoopRecord(not_loaded=not_loaded)
    record.add(UpdateSeen())
    return record


def SPECIMEN() -> LoopRecord:
    return _record("none of 4 weights was loaded: with body. in the place of encoder. all of them fit")


def NEAR_MISS() -> LoopRecord:
    return _record("")
