"""The logarithm of zero or of a negative number, or zero times its infinity.

What it sees
    log with a zero argument; log of a number below zero, such as a variance that a network gives out without
    bounds; a CTC loss with no possible alignment; a difference or product of log-probabilities
    that are both -inf.

Why it hurts
    -inf is a fair value until it is averaged, multiplied by a probability of zero or subtracted from itself.

Smallest example
    p = torch.softmax(torch.tensor([0.0, 200.0]), -1); -torch.log(p[0])  # inf
    # fixed
    -torch.log_softmax(torch.tensor([0.0, 200.0]), -1)[0]  # 200

What to do
    Work with log_softmax, give the argument a floor, or mask the terms whose probability is zero. What must be
    positive and comes from a network (a variance, a scale) is made positive once, before all its uses:
    `F.softplus(x) + 1e-6`. A floor inside the logarithm alone hides a negative value there and nowhere else.

Safety
    log_softmax is exact. A floor changes only probabilities below it.

References
    https://github.com/emited/VariationalRecurrentNeuralNetwork/issues/2
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX203", "log_zero", "The logarithm of zero or of a negative number, or zero times its infinity.")

LOGS = frozenset({"log", "log2", "log10", "log1p", "log_sigmoid_forward", "special_xlog1py"})
COMBINES = frozenset({"sub", "mul", "add", "rsub", "sum", "mean", "div", "bmm", "mm", "addmm", "kl_div", "exp", "dot"})


def match(e: Evidence) -> Match | None:
    if e.op is None or e.kind != "non_finite" or e.cancelled:
        return None
    if e.backward and e.op in LOGS and e.born_in == e.op and e.facts.argument_zero:
        return Match(0.9, f"{e.op} of an exact zero, in a backward that the program wrote itself")
    if e.backward:
        hidden = e.op in LOGS and e.discarded_forward and e.saturated
        return Match(0.9, f"{e.op} of zero, which a function behind it has hidden from the loss") if hidden else None
    if e.op in LOGS and e.facts.argument_zero:
        return Match(0.9, f"{e.op} of an exact zero")
    if e.op in ("lgamma", "mvlgamma") and e.facts.argument_zero:
        return Match(0.8, f"{e.op} at zero, where it grows like a logarithm")
    tame = max((d.absmax for d in e.inputs), default=0.0) < 1e3
    if e.op in ("lgamma", "mvlgamma") and tame and not any(d.num_nan or d.num_inf for d in e.inputs):
        return Match(0.75, f"{e.op} at a pole, where it grows like a logarithm")
    if e.op == "linalg_slogdet" or e.call in ("logdet", "slogdet"):
        return Match(0.85, "the logarithm of a determinant that is zero or below it")
    if e.op == "ctc_loss":
        return Match(0.9, "no alignment fits: the target needs more frames than there are")
    if e.op in ("xlogy", "kl_div", "binary_cross_entropy", "logit"):
        return Match(0.8, f"{e.op} at probability zero")
    if not e.is_nan and e.mask_reached_loss:
        return Match(0.85, f"{e.op} took an entry that a mask had given probability zero")
    if e.is_nan and e.intended_infinities and e.op in COMBINES:
        return Match(0.85, f"{e.op} met infinities that stand for probability zero")
    if e.op in LOGS and e.facts.argument_negative:
        return Match(0.55, f"{e.op} of a negative number")
    return None
