"""What is counted while completions are sampled: how often logits were not finite or too large, where, how large.

The processors of `sg.numerics` repair and count; `Counted` stands before one of them and tells each occurrence with
its number, its shapes and the maximum that was cut, as the field report prints them. The first of each kind is printed,
then every hundredth: a model that is ill has one for every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

PRINTED_EVERY = 100


@dataclass
class LogitStatistics:
    """Counts over a whole run. An occurrence is a call of the processor, which is one token of every completion."""

    calls: int = 0
    nan_occurrences: int = 0
    inf_occurrences: int = 0
    clip_occurrences: int = 0
    rows_repaired: int = 0
    rows_clipped: int = 0
    largest_clipped: float = 0.0

    def __str__(self) -> str:
        return (
            f"logits: {self.calls} calls, NaN in {self.nan_occurrences}, Inf in {self.inf_occurrences}, clipped in "
            f"{self.clip_occurrences} (largest {self.largest_clipped:.2f}); {self.rows_repaired} rows repaired"
        )

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class Counted(LogitsProcessor):
    """A logits processor of `sg.numerics` whose repairs are told. Adds no read of the device to a healthy call."""

    def __init__(self, processor: Any, statistics: LogitStatistics, say: Callable[[str], None] = print) -> None:
        self.processor = processor
        self.statistics = statistics
        self._say = say

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        seen, before = self.statistics, self.processor.counts()
        answer: Tensor = self.processor(input_ids, scores)
        after = self.processor.counts()
        new = {name: after[name] - before[name] for name in after}
        seen.calls += 1
        seen.rows_repaired += new["num_repaired_rows"]
        seen.rows_clipped += new["num_bounded_rows"]
        shapes = f"  Input shape: {tuple(input_ids.shape)}, logits shape: {tuple(scores.shape)}"
        for kind, number in (("NaN", new["num_nan"]), ("Inf", new["num_inf"])):
            if number:
                name = f"{kind.lower()}_occurrences"
                setattr(seen, name, getattr(seen, name) + 1)
                self._tell(
                    getattr(seen, name),
                    f"WARNING: {kind} detected in logits (occurrence #{getattr(seen, name)})",
                    shapes,
                )
        if new["num_bounded_rows"]:
            seen.clip_occurrences += 1
            largest = float(scores.masked_fill(~torch.isfinite(scores), 0.0).abs().amax())
            seen.largest_clipped = max(seen.largest_clipped, largest)
            self._tell(
                seen.clip_occurrences,
                f"Clipping logits: max={largest:.2f} -> {self.processor.clip_value} "
                f"(occurrence #{seen.clip_occurrences}, {new['num_bounded_rows']} of {len(scores)} rows)",
                shapes,
            )
        return answer

    def _tell(self, occurrence: int, *lines: str) -> None:
        if occurrence == 1 or occurrence % PRINTED_EVERY == 0:
            self._say("\n".join(lines))
