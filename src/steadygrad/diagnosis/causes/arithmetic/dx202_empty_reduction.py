"""A mean, variance or loss was taken over too few elements.

What it sees
    A reduction that averages over nothing: no unmasked label, an empty selection, an unbiased variance of one.

Why it hurts
    The average divides by the count, and the count is zero. Gradients may all be zero while the loss is NaN.

Smallest example
    F.cross_entropy(logits, torch.full((8,), -100))  # NaN
    # fixed
    F.cross_entropy(logits, labels, reduction="sum") / (labels != -100).sum().clamp_min(1)

What to do
    Skip such a batch, or sum and divide by a count of at least one; use the biased variance.

Safety
    Exact for every batch that has elements.

References
    https://github.com/huggingface/trl/issues/6668
"""

from __future__ import annotations

from ....records.rules import Rule
from ..evidence import Evidence
from ..match import Match

RULE = Rule("DX202", "empty_reduction", "A mean, variance or loss was taken over too few elements.")

REDUCTIONS = frozenset(
    {"mean", "var", "std", "var_mean", "std_mean", "median", "nanmean", "nll_loss_forward", "nll_loss2d_forward"}
)
# Calls that count what they reduce and divide by it, in their own ops.
COUNTING = frozenset({"mean", "nanmean", "var", "std", "var_mean", "std_mean", "cov", "corrcoef", "nanmedian"})


def match(e: Evidence) -> Match | None:
    if e.op is None or e.backward or e.kind != "non_finite":
        return None
    if any(0 in d.shape for d in e.inputs) and e.op not in ("cat", "stack"):
        return Match(0.95, f"{e.op} over an empty tensor")
    if e.op in REDUCTIONS and e.facts.num_reduced is not None and e.facts.num_reduced <= 1:
        return Match(0.95, f"{e.op} over {e.facts.num_reduced} elements")
    if e.op in ("segment_reduce", "scatter_reduce", "index_reduce") and not any(d.num_nan for d in e.inputs):
        return Match(0.85, f"{e.op} over a segment in which there is nothing")
    if e.call in COUNTING and e.facts.denominator_zero:
        return Match(0.95, f"{e.call} over nothing: it divides by a count of zero")
    if e.op.startswith("nll_loss") and not any(d.num_nan or d.num_inf for d in e.inputs):
        return Match(0.9, "no label of this batch counts towards the loss")
    return None
