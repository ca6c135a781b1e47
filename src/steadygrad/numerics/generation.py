"""Logits processors for `generate`: they keep sampling alive, and say that the model is not well.

Both have the interface of transformers' LogitsProcessor and need no transformers to be imported or used:

    from transformers import LogitsProcessorList
    model.generate(ids, do_sample=True, logits_processor=LogitsProcessorList([NumericalStabilityLogitsProcessor()]))

Repairing logits stops the crash and fixes nothing: the weights or activations that made them are still bad. So each
repair posts a fatal finding (SY501) on the board, for the guard, or whoever owns the training step, to act on.
"""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from ..records import Finding, Severity
from ..records.errors import UsageError
from ..records.rules import Rule
from .logit_repair import Damage, repaired, within
from .published_findings import Board, board
from .rules.sy501_non_finite_logits import RULE as NON_FINITE_LOGITS
from .rules.sy502_every_token_forbidden import RULE as EVERY_TOKEN_FORBIDDEN

log = logging.getLogger("steadygrad.numerics")

_USUAL_LIMIT = 30.0


class _Processor:
    """What both processors keep: counts, a log, and a board to post on."""

    supports_continuous_batching = False

    def __init__(self, *, verbose: bool, report_to: Board | None) -> None:
        self.verbose = verbose
        self.num_calls = 0
        self.num_repaired_calls = 0
        self.num_repaired_rows = 0
        self.num_nan = 0
        self.num_inf = 0
        self.num_bounded_rows = 0
        self.num_stuck_rows = 0
        self._board = report_to
        self._told: set[str] = set()

    def counts(self) -> dict[str, int]:
        """Everything counted since this processor was made."""
        return {name: value for name, value in vars(self).items() if name.startswith("num_")}

    def _account(self, damage: Damage, length: int, num_rows: int) -> None:
        self.num_nan += damage.num_nan
        self.num_inf += damage.num_inf
        self.num_repaired_rows += damage.num_rows
        self.num_bounded_rows += damage.num_bounded
        self.num_stuck_rows += damage.num_stuck
        if damage.num_bounded and self.verbose:
            rows = f"{damage.num_bounded} of {num_rows} rows at position {length}"
            log.warning("%s: clipping logits: %s (%s)", type(self).__name__, self._clipped(damage), rows)
        if damage.num_rows:
            self.num_repaired_calls += 1
            what = f"{damage.num_nan} NaN and {damage.num_inf} infinite logits in {damage.num_rows} of {num_rows} rows"
            self._post(
                NON_FINITE_LOGITS,
                Severity.FATAL,
                f"{what} at position {length}; repaired for sampling, but the model that made them is still damaged",
                num_nan=damage.num_nan,
                num_inf=damage.num_inf,
                num_rows=damage.num_rows,
                num_calls=1,
                first_position=length,
            )
        if damage.num_stuck:
            self._post(
                EVERY_TOKEN_FORBIDDEN,
                Severity.WARNING,
                f"{damage.num_stuck} of {num_rows} rows at position {length} have no token that is allowed",
                num_rows=damage.num_stuck,
                num_calls=1,
                first_position=length,
            )

    def _clipped(self, damage: Damage) -> str:
        """What was beyond the limit and what it became, for example "max=45.23 -> 30.0"."""
        limit = float(getattr(self, "clip_value", None) or _USUAL_LIMIT)
        top = [f"max={damage.highest:.2f} -> {limit}"] if damage.highest > limit else []
        bottom = [f"min={damage.lowest:.2f} -> {-limit}"] if damage.lowest < -limit else []
        return ", ".join(top + bottom)

    def _post(self, rule: Rule, severity: Severity, detail: str, **evidence: int) -> None:
        if self.verbose or rule.code not in self._told:
            self._told.add(rule.code)
            log.warning("%s: %s (steady explain %s)", type(self).__name__, detail, rule.code)
        (self._board or board()).post(
            Finding(
                code=rule.code,
                slug=rule.slug,
                severity=severity,
                step=0,
                subject="generate",
                detail=detail,
                evidence=evidence,
            )
        )


class NumericalStabilityLogitsProcessor(_Processor):
    """Repairs NaN and infinite logits before sampling, and holds the rest within +-clip_value.

    Rows that are finite and within the limit are returned as they are: the same tensor, if all are. Tokens masked with
    -inf stay forbidden. A finite row that reaches beyond the limit is shifted into it, which softmax does not see;
    tokens less likely than e^-clip_value are all that changes (at 30 and 152,000 tokens, 1.4e-8 of the mass).

    `min_prob` is the floor under the tokens of rows that were repaired. Under every row it would cost: 1e-8 for each
    of 151,936 tokens hands 0.15 % of the mass to noise. `floor_all=True` asks for that all the same.

    Syncs with the host once a call (twice where tokens are forbidden), as `generate` itself does once a token.

    Args:
        clip_value: None leaves finite logits alone whatever their size; float32 softmax does not mind it.
        verbose: log every repair and every clipping ("max=45.23 -> 30.0"); otherwise only the first repair of each kind
            is logged.
        fallback_token_id: what a row gets in which every token is forbidden, for example the end of the sequence.

    Returns:
        A logits processor: `processor(input_ids, scores)` returns scores that can be sampled from.

    Example:
        >>> processor = sg.numerics.NumericalStabilityLogitsProcessor(report_to=sg.numerics.Board())
        >>> scores = processor(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[1.0, float("nan"), 2.0]]))
        >>> bool(torch.isfinite(scores).all())
        True
    """

    def __init__(
        self,
        clip_value: float | None = _USUAL_LIMIT,
        min_prob: float = 1e-8,
        verbose: bool = False,
        *,
        floor_all: bool = False,
        fallback_token_id: int | None = None,
        report_to: Board | None = None,
    ) -> None:
        super().__init__(verbose=verbose, report_to=report_to)
        if clip_value is not None and not (clip_value > 0 and math.isfinite(clip_value)):
            raise UsageError(f"clip_value={clip_value} must be a finite number above zero, or None.")
        if not 0 <= min_prob < 1:
            raise UsageError(f"min_prob={min_prob} must be a probability: 0 leaves the floor out, 1e-8 is usual.")
        self.clip_value = clip_value
        self.min_prob = min_prob
        self.floor_all = floor_all
        self.fallback_token_id = fallback_token_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores to sample from."""
        self.num_calls += 1
        limit = torch.finfo(scores.dtype).max if self.clip_value is None else self.clip_value
        if not self.floor_all and (scores.numel() == 0 or within(scores, limit)):
            return scores
        made, damage = repaired(
            scores,
            limit=_USUAL_LIMIT if self.clip_value is None else self.clip_value,
            bound=self.clip_value is not None,
            min_prob=self.min_prob,
            floor_all=self.floor_all,
            fallback=self.fallback_token_id,
        )
        self._account(damage, input_ids.shape[-1], len(scores))
        return made


class TemperatureLogitsWarper(_Processor):
    """Divides the scores by a temperature that is never below `min_temperature`, and never makes an infinity.

    At temperature 1 the scores are returned as they are; at others, healthy rows are the same bits as `scores /
    temperature`. A row that the division would overflow is shifted first, which softmax does not see. A row that was
    damaged before is repaired and reported as by `NumericalStabilityLogitsProcessor`.

    Syncs with the host once a call where the temperature is not 1. A temperature below the minimum is raised to it,
    which is logged once, here: 0.01 asks for greedy decoding, which `do_sample=False` does exactly.

    Args:
        temperature: above 1 flattens the distribution, below 1 sharpens it.
        min_temperature: the least that is used.
        verbose: log every repair.
        report_to: a Board instead of the one of this process.

    Returns:
        A logits processor: `warper(input_ids, scores)` returns scores / temperature.

    Example:
        >>> warper = sg.numerics.TemperatureLogitsWarper(0.5)
        >>> warper(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[1.0, 2.0]]))
        tensor([[2., 4.]])
    """

    def __init__(
        self,
        temperature: float = 1.0,
        min_temperature: float = 0.1,
        *,
        verbose: bool = False,
        report_to: Board | None = None,
    ) -> None:
        super().__init__(verbose=verbose, report_to=report_to)
        if not (temperature >= 0 and math.isfinite(temperature)):
            raise UsageError(f"temperature={temperature} must be a finite number, zero or above.")
        if not (min_temperature > 0 and math.isfinite(min_temperature)):
            raise UsageError(f"min_temperature={min_temperature} must be a finite number above zero.")
        self.min_temperature = min_temperature
        self.temperature = max(float(temperature), float(min_temperature))
        if temperature < min_temperature:
            log.warning(
                "Temperature %g was raised to the minimum of %g. For greedy decoding pass do_sample=False; to go "
                "lower, pass min_temperature=.",
                temperature,
                min_temperature,
            )

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores divided by the temperature."""
        self.num_calls += 1
        if self.temperature == 1.0 or scores.numel() == 0:
            return scores
        warped = scores / self.temperature
        top = warped.amax(-1)
        sound = top.isfinite()
        if bool(sound.all()):
            return warped
        made, damage = repaired(scores, limit=_USUAL_LIMIT, bound=False, min_prob=0.0, floor_all=False, fallback=None)
        self._account(damage, input_ids.shape[-1], len(scores))
        return torch.where(sound[:, None], warped, _divided(made, self.temperature))


def _divided(scores_RV: Tensor, temperature: float) -> Tensor:
    """Rows brought to a top of zero and divided; what is allowed stays finite."""
    wide = scores_RV.double()
    top = wide.amax(-1, keepdim=True)
    shifted = wide - torch.where(top.isfinite(), top, 0.0)
    lowest = torch.finfo(scores_RV.dtype).min
    held = (shifted / temperature).clamp(min=lowest)
    return held.masked_fill(wide == -math.inf, -math.inf).to(scores_RV.dtype)
