"""The failing configuration: what it prints in a plain loop, and what the guard says about it.

A student loaded and trained in float16 with AdamW's usual epsilon, a divergence written out as p (log p - log q), and
a teacher's loss that is quietly replaced by zero when it is not finite. The first step looks fine. Then

    Numerical issue: total_loss=nan, kd=0.0000, ce=nan

for ever. The loss is the last to know: 1e-8 is 0 in float16, so the optimizer divides by zero where a squared gradient
underflows, with gradients that are all finite. No check of loss or gradient can see that step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import steadygrad as sg

from .batches import Batch, shuffled
from .models import Pair
from .objective import take, teacher_log_p
from .workbench import Workbench

TEMPERATURE, KD_WEIGHT, CE_WEIGHT, RATE = 4.0, 0.7, 0.3, 5e-5


@dataclass(frozen=True, slots=True)
class SickRun:
    """What each loop printed, and the diagnosis."""

    plain: tuple[str, ...]
    cause: str
    because: str
    remedies: tuple[str, ...]
    bad_weights_plain: int
    bad_weights_guarded: int


def run_sick(bench: Workbench, *, run_dir: Path, steps: int = 4, tell: Callable[[str], None] = print) -> SickRun:
    """The same start and the same batches, first in a plain loop, then under the guard."""
    lines = []
    pair, optimizer = _patient(bench)
    for step, batch in enumerate(_batches(bench, steps)):
        terms = sick_loss(pair, batch)
        torch.autograd.backward(terms["loss"])
        torch.nn.utils.clip_grad_norm_(pair.student.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        lines.append(_as_printed(step, terms))
        tell(lines[-1])
    poisoned = _bad(pair)
    tell(f"plain loop: {poisoned} of {len(list(pair.student.parameters()))} weight tensors are not finite")
    pair, optimizer = _patient(bench)
    with sg.Guard(pair, optimizer, sick_loss, max_grad_norm=0.5, run_dir=run_dir) as guard:
        try:
            for batch in _batches(bench, 2):
                guard.step(batch)
        except sg.TrainingHalted as halt:
            tell(f"halted: {halt}")
    found = [incident.diagnosis for incident in guard.incidents if incident.diagnosis is not None]
    cause = found[0].cause if found else None
    remedies = tuple(f"{trial.remedy.code} {trial.remedy.change}" for trial in found[0].remedies) if found else ()
    answer = SickRun(
        plain=tuple(lines),
        cause=f"{cause.code} {cause.slug}" if cause else "",
        because=found[0].because if found else "",
        remedies=remedies,
        bad_weights_plain=poisoned,
        bad_weights_guarded=_bad(pair),
    )
    tell(f"guarded: {answer.bad_weights_guarded} weight tensors are not finite")
    tell(f"cause: {answer.cause}: {answer.because}")
    for remedy in answer.remedies:
        tell(f"tried on that step, and it helps: {remedy}")
    return answer


def sick_loss(pair: Any, batch: Batch) -> dict[str, Tensor]:
    """As the failing scripts write it. Do not copy this."""
    student = pair.student(batch["student_ids"], use_cache=False).logits
    with torch.no_grad():
        teacher = teacher_log_p(pair, batch, vocabulary=student.shape[-1])[0].half()
    ce = F.cross_entropy(student.flatten(0, 1), batch["labels"].flatten())
    p = F.softmax(teacher / TEMPERATURE, dim=-1)
    log_q = F.log_softmax(take(student, batch["at_student"]) / TEMPERATURE, dim=-1)
    kd = (p * (p.log() - log_q)).sum(-1).mean() * TEMPERATURE**2
    if not kd.isfinite():
        kd = torch.zeros_like(kd)
    return {"loss": KD_WEIGHT * kd + CE_WEIGHT * ce, "kd": KD_WEIGHT * kd, "ce": CE_WEIGHT * ce}


def _patient(bench: Workbench) -> tuple[Pair, torch.optim.AdamW]:
    pair = bench.pair(seed=bench.settings.seed, with_teacher=True)
    pair.requires_grad_(False)
    pair.student.half().requires_grad_(True)
    return pair, torch.optim.AdamW(pair.student.parameters(), lr=RATE, foreach=False)


def _batches(bench: Workbench, steps: int) -> list[Batch]:
    return list(shuffled(bench.train, batch_size=4, steps=steps, seed=bench.settings.seed, device=bench.device))


def _bad(pair: Pair) -> int:
    return sum(not bool(p.isfinite().all()) for p in pair.student.parameters())


def _as_printed(step: int, terms: dict[str, Tensor]) -> str:
    loss, kd, ce = (float(terms[name].detach()) for name in ("loss", "kd", "ce"))
    words = "Numerical issue" if loss != loss else f"Step {step}"
    return f"{words}: total_loss={loss:.4f}, kd={kd:.4f}, ce={ce:.4f}"
