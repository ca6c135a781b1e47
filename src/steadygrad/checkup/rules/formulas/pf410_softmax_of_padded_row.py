"""A softmax over a row that padding may mask everywhere.

What it sees
    `softmax` of scores whose padded places were filled with -inf by a mask with pad in its name.

Why it hurts
    A row that is all padding is all -inf, and its softmax is 0/0: NaN, which attention spreads over the batch. Whether
    a fused kernel does the same depends on which one was chosen.

Smallest example
    scores.masked_fill(padding_mask, float("-inf")).softmax(-1)
    # fixed
    scores.masked_fill(padding_mask, torch.finfo(scores.dtype).min).softmax(-1)

What to do
    Fill with `torch.finfo(scores.dtype).min`, or see to it that no row is empty (`steady doctor` counts them in a data
    set, PF506).

Safety
    A note: where every row has a token it is exact. Causal masks always leave the diagonal and are not reported.

References
    https://github.com/pytorch/pytorch/issues/41508
    https://github.com/pytorch/pytorch/issues/103749
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loss_expressions import MINUS_INFINITY, bare
from ...inputs.script import Script, keyword

RULE = Rule("PF410", "softmax_of_padded_row", "A softmax over a row that padding may mask everywhere.")


def of_script(script: Script) -> Iterator[Advice]:
    """Judged by the mask's name: only padding can leave a row empty."""
    for call in script.calls:
        op = script.op(call)
        if op is None or op.name not in ("softmax", "log_softmax") or not op.of_torch or script.untracked(call):
            continue
        fill = script.op(bare(script, op.operand))
        if fill is None or fill.name not in ("masked_fill", "masked_fill_") or len(fill.call.args) < 1:
            continue
        value = fill.call.args[1] if len(fill.call.args) > 1 else keyword(fill.call, "value")
        if "pad" in ast.unparse(fill.call.args[0]).lower() and _is_minus_infinity(value):
            yield at(
                RULE, Level.NOTE, script, call, "a row that is all padding has a softmax of NaN",
                help="fill with torch.finfo(scores.dtype).min instead of -inf",
            )  # fmt: skip


def _is_minus_infinity(value: ast.expr | None) -> bool:
    return value is not None and ast.unparse(value).replace('"', "'") in MINUS_INFINITY


_TEXT = """
import torch
def attend(scores, padding_mask, causal_mask):
    scores = scores.masked_fill({mask}, {value})
    return torch.softmax(scores, dim=-1)
"""
SPECIMENS = [_TEXT.format(mask="padding_mask", value='float("-inf")')]
NEAR_MISSES = [
    _TEXT.format(mask="causal_mask", value='float("-inf")'),
    _TEXT.format(mask="padding_mask", value="torch.finfo(scores.dtype).min"),
]
