"""The loss depends on parameters that it gives no gradient: a term was turned into a number.

What it sees
    Parameters in an optimizer get no gradient in several steps, and the loss of a batch is another one when they are
    moved, with all else the same. Or a number without gradient is added to the loss, and is another one when the
    weights are moved: a penalty computed with numpy, a derivative taken without `create_graph=True`.

Why it hurts
    The term is computed, it is part of the loss that is shown, and it trains nothing.

Smallest example
    loss = cross_entropy + 0.1 * penalty.item()
    # fixed
    loss = cross_entropy + 0.1 * penalty

What to do
    Leave out `.item()`, `.data`, `.detach()`, `torch.tensor(...)` and `no_grad` on the way from these parameters to the
    loss, and take derivatives with `create_graph=True`.

Safety
    It changes nothing: the step is run again with the parameters moved, and all state is restored. A part whose output
    is not used in the loss, one that is behind a weight of zero, a target without gradient, and a single number that is
    added with `.detach()`, to be shown, are not reported.

References
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....detect.graph.graph_findings import NAMED, seen
from ....detect.make_finding import listed
from ....records import Finding
from ....records.rules import Rule

RULE = Rule(
    "SY438",
    "detached_graph",
    "The loss depends on parameters that it gives no gradient: a term was turned into a number.",
)
_ROUNDING = 1e-5


def judge_terms(plain: Sequence[float], again: Sequence[float], moved: Sequence[float]) -> Finding | None:
    """Pure: the numbers that are added to the loss of a batch, the same once more, and those with the weights moved."""
    if not len(plain) == len(again) == len(moved):
        return None
    for before, same, after in zip(plain, again, moved, strict=True):
        if _depends(before, same, after):
            return seen(
                RULE,
                "",
                f"a term of the loss is {before:.4g}, and {after:.4g} when the weights are moved, but it is added as a "
                "number and gives them no gradient",
                plain=before,
                moved=after,
            )
    return None


def _depends(plain: float, again: float, moved: float) -> bool:
    finite = all(map(math.isfinite, (plain, again, moved)))
    return finite and abs(moved - plain) > _ROUNDING * abs(plain) + 100 * abs(again - plain)


def judge(names: Sequence[str], plain: float, again: float, moved: float) -> Finding | None:
    """Pure: the loss of a batch, the same once more, and the loss with these parameters moved."""
    if not names or not _depends(plain, again, moved):
        return None
    return seen(
        RULE,
        names[0],
        f"the loss is {moved:.4g} instead of {plain:.4g} when {listed(list(names))} are moved, and gives them no "
        "gradient",
        names=list(names)[:NAMED],
        plain=plain,
        moved=moved,
    )


def SPECIMEN() -> tuple[Sequence[str], float, float, float]:
    return ["aux.weight"], 1.25, 1.25, 1.75


def NEAR_MISS() -> tuple[Sequence[str], float, float, float]:
    """An output that the loss does not use."""
    return ["aux.weight"], 1.25, 1.25, 1.25
