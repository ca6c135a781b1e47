"""One guarded run: steps, validation, the best student, resuming, and what came of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

import steadygrad as sg
from steadygrad.journal import steps_table

from .alignment import Aligned
from .batches import shuffled
from .measuring import Score, router_drift, score_student
from .models import Pair, save_student
from .objective import make_loss_fn
from .settings import Settings

Tell = Callable[[int, str], None]


@dataclass(kw_only=True)
class Result:
    """What one run came to. `curve` holds [step, validation perplexity]."""

    name: str
    seed: int
    steps: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    best: float = math.inf
    best_step: int = 0
    final: float = math.inf
    bits_per_byte: float = math.inf
    success_rate: float = 1.0
    refused: int = 0
    scale_skips: int = 0
    """Batches that the loss scale of fp16 was too large for: they are run with no update, and count as no failure."""
    incidents: int = 0
    bad_updates: int = 0
    """Weights that are not finite in the end; 0 unless something got past the guard."""
    largest_norm: float = 0.0
    router_drift: float = 0.0
    seconds: float = 0.0
    peak_bytes: int = 0
    halted: str = ""
    interrupted: bool = False


def run(
    name: str,
    settings: Settings,
    pair: Pair,
    train: Sequence[Aligned],
    validation: Sequence[Aligned],
    validation_bytes: int,
    *,
    run_dir: Path,
    device: torch.device,
    precision: str,
    resume: bool = False,
    tell: Tell = lambda step, words: None,
) -> Result:
    """Train the student of `pair` (and its routers) for `settings.steps` batches under the guard."""
    routers = pair.routers() if settings.train_routers else []
    for parameter in pair.parameters():
        parameter.requires_grad_(False)
    for parameter in [*pair.student.parameters(), *routers]:
        parameter.requires_grad_(True)
    groups: list[dict[str, Any]] = [{"params": list(pair.student.parameters()), "lr": settings.student_lr}]
    if routers:
        groups.append({"params": routers, "lr": settings.router_lr, "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    scheduler = LambdaLR(optimizer, _warmup_then_cosine(settings))
    result = (read_result(run_dir) if resume else None) or Result(name=name, seed=settings.seed)
    result.interrupted, earlier, started = False, result.seconds, time.perf_counter()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def measure(step: int) -> Score:
        score = score_student(pair.student, validation, validation_bytes, device=device)
        result.curve = [point for point in result.curve if point[0] < step] + [(step, score.perplexity)]
        result.final, result.bits_per_byte = score.perplexity, score.bits_per_byte
        if score.perplexity < result.best:
            result.best, result.best_step = score.perplexity, step
            save_student(pair.student, run_dir / "best")
        return score

    guard = sg.Guard(
        pair, optimizer, make_loss_fn(settings),
        max_grad_norm=settings.max_grad_norm, scheduler=scheduler, policy=settings.policy(), precision=precision,
        run_dir=run_dir, checkpoint_every=settings.checkpoint_every, resume=resume,
    )  # fmt: skip
    with guard:
        try:
            done = guard.batches_seen
            result.curve = [point for point in result.curve if point[0] <= done]
            if not result.curve:
                measure(0)
            batches = shuffled(
                train,
                batch_size=settings.batch_size,
                steps=settings.steps,
                seed=settings.seed,
                device=device,
                skip=done,
            )
            for step, batch in enumerate(batches, start=done + 1):
                outcome = guard.step(batch)
                if step % settings.eval_every == 0 or step == settings.steps:
                    score = measure(step)
                    _keep(result, guard, run_dir)
                    tell(step, in_words(outcome, score, result, step))
                else:
                    tell(step, "")
        except sg.TrainingHalted as halt:
            result.halted = str(halt)
        except KeyboardInterrupt:
            result.interrupted = True
        result.seconds = earlier + time.perf_counter() - started
        result.bad_updates = sum(not bool(p.isfinite().all()) for p in pair.parameters() if p.requires_grad)
        result.router_drift = router_drift(pair.teacher) if pair.teacher is not None else 0.0
        if device.type == "cuda":
            result.peak_bytes = torch.cuda.max_memory_allocated(device)
        _keep(result, guard, run_dir)
    result.largest_norm = _largest_norm(run_dir)
    _write(result, run_dir)
    return result


def in_words(outcome: sg.Outcome, score: Score, result: Result, step: int) -> str:
    """A validation in one line: what the loss is made of, the perplexity, and whether it is the best so far."""
    terms = outcome.reading.terms if outcome.reading is not None else {}
    split = ", ".join(f"{name} {terms[name]:.3f}" for name in ("kd", "ce") if name in terms)
    best = "  new best" if result.best_step == step else ""
    return (
        f"loss {_number(outcome.loss):.3f}{f' ({split})' if split else ''}  perplexity {score.perplexity:.1f}"
        f"  success {100 * result.success_rate:.1f} %{best}"
    )


def _keep(result: Result, guard: sg.Guard, run_dir: Path) -> None:
    summary = guard.summary()
    result.steps, result.incidents = summary["steps"], summary["incidents"]
    result.success_rate, result.scale_skips = summary["success_rate"], summary["overflows"]
    result.refused = summary["skipped"] - summary["overflows"]
    _write(result, run_dir)


def _write(result: Result, run_dir: Path) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "result.json.tmp").write_text(json.dumps(asdict(result)), encoding="utf-8")
    (run_dir / "result.json.tmp").replace(run_dir / "result.json")
    (run_dir / "metrics.json").write_text(json.dumps({"perplexity": result.curve}), encoding="utf-8")


def read_result(run_dir: Path) -> Result | None:
    """What an earlier run wrote; None if it got nowhere."""
    try:
        saved = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
        return Result(**{**saved, "curve": [(int(step), float(value)) for step, value in saved["curve"]]})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _warmup_then_cosine(settings: Settings) -> Callable[[int], float]:
    warmup = min(settings.warmup, max(1, settings.steps // 4))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        share = (step - warmup) / max(1, settings.steps - warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, share)))

    return factor


def _largest_norm(run_dir: Path) -> float:
    """The largest gradient norm of an update that was applied, from the journal."""
    table = steps_table(run_dir, columns=["grad_norm", "applied"], allow_empty=True)
    norms = zip(table["grad_norm"].to_pylist(), table["applied"].to_pylist(), strict=True)
    return max((norm for norm, applied in norms if applied and norm is not None), default=0.0)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
