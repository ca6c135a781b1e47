"""Two loops over the same batches from the same weights: a plain loop, and the same loop guarded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ...integrations.guard import Guard
from ...records import Incident
from .dialogue import CONTEXT, Dialogue, load
from .gpt import GPT

BATCH_SIZE = 12
LEARNING_RATE = 4e-3
WARM_UP_STEPS = 20
MAX_GRAD_NORM = 1.0


def reply_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean over each reply's characters first, then over replies: a short reply counts as much as a long one."""
    tokens_BT, scored_BT = batch["tokens"], batch["scored"][:, 1:]
    logits_BTV = model(tokens_BT[:, :-1])
    loss_BT = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten(), reduction="none").view_as(scored_BT)
    loss_B = (loss_BT * scored_BT).sum(dim=1) / scored_BT.sum(dim=1)
    return loss_B.mean()


@dataclass(frozen=True, slots=True)
class LoopState:
    """One step of both loops."""

    step: int
    plain_loss: float
    guarded_loss: float
    refused: bool


@dataclass(slots=True)
class Result:
    """How the race ended. Losses are means over the last tenth of the steps that counted."""

    steps: int
    plain_first_bad_step: int | None
    plain_losses: list[float]
    plain_bad_weights: int
    guarded_losses: list[float]
    guarded_bad_weights: int
    num_weights: int
    summary: dict[str, Any]
    incidents: list[Incident]
    culprits: tuple[str, ...] = ()

    @property
    def guarded_loss(self) -> float:
        landed = [loss for loss in self.guarded_losses if math.isfinite(loss)]
        last = landed[-max(1, len(landed) // 10) :]
        return sum(last) / len(last) if last else math.nan


class TwoLoops:
    """Both loops, ready to run. `guard` is the guarded one's."""

    def __init__(self, *, steps: int, seed: int, run_dir: Path | None) -> None:
        self.steps = steps
        self.seed = seed
        self.dialogue: Dialogue = load()
        self.plain_model, self._plain_optimizer, self._plain_schedule = self._make()
        self.guarded_model, optimizer, schedule = self._make()
        self.guard = Guard(
            self.guarded_model, optimizer, reply_loss, max_grad_norm=MAX_GRAD_NORM, scheduler=schedule, run_dir=run_dir
        )
        self._laps: list[LoopState] = []
        self._fatal_pairs: set[int] = set()

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.plain_model.parameters())

    def run(self) -> Iterator[LoopState]:
        """Feed both loops the same batch, step by step."""
        with self.guard:
            for step, batch in enumerate(self.dialogue.batches(count=self.steps, size=BATCH_SIZE, seed=self.seed)):
                outcome = self.guard.step(batch)
                plain_loss = self._plain_step(batch)
                guarded_loss = outcome.loss if outcome.loss is not None else math.nan
                if outcome.skipped:
                    self._fatal_pairs |= set(batch["sample_id"][~batch["scored"].any(dim=1)].tolist())
                lap = LoopState(step, plain_loss, guarded_loss, outcome.skipped)
                self._laps.append(lap)
                yield lap

    def _plain_step(self, batch: dict[str, Tensor]) -> float:
        """A plain training loop."""
        loss = reply_loss(self.plain_model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.plain_model.parameters(), MAX_GRAD_NORM)
        self._plain_optimizer.step()
        self._plain_schedule.step()
        self._plain_optimizer.zero_grad()
        return loss.item()

    def result(self) -> Result:
        """What became of both. Call after `run` has ended."""
        bad = [lap.step for lap in self._laps if not math.isfinite(lap.plain_loss)]
        return Result(
            steps=len(self._laps),
            plain_first_bad_step=bad[0] if bad else None,
            plain_losses=[lap.plain_loss for lap in self._laps],
            plain_bad_weights=_bad_weights(self.plain_model),
            guarded_losses=[lap.guarded_loss for lap in self._laps],
            guarded_bad_weights=_bad_weights(self.guarded_model),
            num_weights=len(list(self.guarded_model.parameters())),
            summary=self.guard.summary(),
            incidents=self.guard.incidents,
            culprits=tuple(self.dialogue.pairs[index].cue for index in sorted(self._fatal_pairs)),
        )

    def _make(self) -> tuple[GPT, Optimizer, LambdaLR]:
        # A generator of one's own would not reach nn.init's defaults; put the global one back afterwards.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = GPT(characters=len(self.dialogue.alphabet) + 1, context=CONTEXT)
        optimizer = AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
        schedule = LambdaLR(optimizer, lambda step: _rate(step, self.steps))
        return model, optimizer, schedule


def _rate(step: int, steps: int) -> float:
    """Warm up in a straight line, then half a cosine down to a tenth."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    done = min(1.0, (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def _bad_weights(model: nn.Module) -> int:
    return sum(not bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
