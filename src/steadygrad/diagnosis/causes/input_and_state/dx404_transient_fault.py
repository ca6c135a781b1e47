"""A value changed although no operation wrote it.

What it sees
    A weight with one entry far out of range that no update wrote; a gradient that backward did not make; a step
    that is fine when it is run again.

Why it hurts
    Memory and arithmetic units fail rarely and silently. One flipped exponent bit turns 0.75 into 1e38.

Smallest example
    w.view(torch.int32)[4, 17] ^= 1 << 30
    # fixed
    model.load_state_dict(last_good["model"])

What to do
    Restore the weight or recompute the step; if it happens again on the same device, take the device out.

Safety
    Exact.

References
    https://arxiv.org/abs/2102.11245
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

ASTRONOMIC = 1e15
RULE = Rule("DX404", "transient_fault", "A value changed although no operation wrote it.")


def match(e: Evidence) -> Match | None:
    if e.reproduced[1] and e.reproduced[0] == 0:
        return Match(0.9, f"not reproduced: the step is finite in {e.reproduced[1]} of {e.reproduced[1]} replays")
    if e.bits_written:
        return Match(0.96, "the bits of a floating point number were changed in place")
    if e.kind == "tampered_gradient":
        return Match(0.93, "the gradient was finite after backward and not when the optimizer read it")
    if e.phase == "state":
        for change in e.changes:
            few = change.num_changed <= max(2, change.num_elements // 1000)
            # A buffer may be badly loaded, too. Finite and astronomic is what a flipped bit makes of a number.
            flipped = change.kind == "buffer" and not change.non_finite_after and change.absmax_after > ASTRONOMIC
            if few and change.out_of_range and (change.kind == "parameter" or flipped):
                return Match(
                    0.95,
                    f"{change.num_changed} entry of {change.name} jumped to {change.absmax_after:.3g} between steps",
                )
        if e.huge_state is not None and e.huge_state[2] <= 4 and not e.bad_since_start:
            name, size, count = e.huge_state
            return Match(0.9, f"{count} entry of {name} stands at {size:.3g}, far beyond all others")
    return None
