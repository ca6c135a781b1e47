"""DeepSpeed, watched and not guarded: its engine judges and skips steps by itself, on flat partitions of its own.

`sg.attach(engine)` reads what the engine says of every step (its loss if it is observed, its global gradient norm,
whether the step was applied, how many it has skipped) and keeps it in the journal with the findings of the detectors.
It refuses nothing, rolls nothing back and diagnoses nothing: the gradients that ZeRO gives to its inner optimizer are
parts of flat buffers, and what undoing them would take is not known well enough to promise. Only public names of the
engine are used, and those that are missing are done without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ..engine import setup
from ..engine.books import Books
from ..engine.ranks import world_size
from ..engine.shield import Shield
from ..errors import UsageError
from ..journal import Journal
from ..policy import Capabilities, Policy
from ..records import Finding, Incident, Reading
from .patching import wrap_method

logger = logging.getLogger("steadygrad")


def attach_deepspeed(engine: Any, **options: Any) -> DeepSpeedMonitor:
    """Watch a DeepSpeed engine. Options: run_dir, and policy="observe" if one is given at all."""
    return DeepSpeedMonitor(engine, **options)


class DeepSpeedMonitor:
    """Listens at `engine.step()`. One host read a step, of a norm that the engine has computed already."""

    def __init__(self, engine: Any, *, run_dir: Any = None, policy: str | Policy = "observe") -> None:
        if not callable(getattr(engine, "step", None)) or not callable(getattr(engine, "backward", None)):
            raise UsageError(f"{type(engine).__name__} has no step() and backward(): this is not a DeepSpeed engine.")
        self.policy = Policy.named(policy)
        if self.policy.acts:
            raise UsageError(
                "A DeepSpeed engine can only be watched: it skips steps by itself and its updates cannot be refused or "
                "undone exactly from outside. Pass policy='observe', or train with DDP or fully_shard to be guarded."
            )
        self._engine = engine
        self._shield = Shield()
        rank = dist.get_rank() if world_size() > 1 else 0
        names = [setup.clean_name(name) for name, _ in _module_of(engine).named_parameters()]
        config = setup.run_config(self.policy.name, "the engine's own", 1, ())
        self._journal = Journal(run_dir, names=names, run_config=config, rank=rank)
        self._shield.report_to(self._journal.event)
        self._books = Books(self.policy, self._journal, self._shield, run=self._journal.run_id, rank=rank)
        self._loss: Tensor | float | None = None
        self._step = 0
        self._skipped_before = int(getattr(engine, "skipped_steps", 0))
        self._skipped = 0
        self._undo: list[Callable[[], Any]] = [
            wrap_method(engine, "backward", self._around_backward),
            wrap_method(engine, "step", self._around_step),
        ]
        if rank == 0:
            logger.warning("DeepSpeed is watched, not guarded: it skips steps by itself, and nothing is undone here.")

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        return list(self._books.incidents)

    @property
    def vitals(self) -> list[Finding]:
        return list(self._books.vitals)

    def summary(self) -> dict[str, Any]:
        """The counts of the run; `skipped` are those that the engine says it skipped."""
        return {**self._books.summary(), "skipped": self._skipped, "guarded": False}

    def close(self) -> None:
        """Let go of the engine and close the journal. Safe to call twice."""
        while self._undo:
            self._undo.pop()()
        with self._shield("journal", None):
            self._journal.close()

    def __enter__(self) -> DeepSpeedMonitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- listening

    def _around_backward(self, original: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._loss = loss.detach()
        return original(loss, *args, **kwargs)

    def _around_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        ends_window = self._ends_window()
        answer = original(*args, **kwargs)
        if ends_window:
            with self._shield("deepspeed", None):
                self._note()
        return answer

    def _ends_window(self) -> bool:
        asks = getattr(self._engine, "is_gradient_accumulation_boundary", None)
        return bool(asks()) if callable(asks) else True

    def _note(self) -> None:
        """Enter one step as the engine tells it."""
        norm = _call(self._engine, "get_global_grad_norm")
        skipped = int(getattr(self._engine, "skipped_steps", self._skipped_before))
        refused = skipped > self._skipped_before or _call(self._engine, "was_step_applied") is False
        self._skipped_before = skipped
        self._skipped += refused
        loss, self._loss = self._loss, None
        reading = Reading(
            step=self._step,
            loss=0.0 if loss is None else float(loss),
            grad_norm=0.0 if norm is None else float(norm),
            loss_scale=_scale(self._engine),
            refused=refused,
        )
        self._step += 1
        findings = self._books.judge(reading)
        decision = self._books.decide(reading, findings, Capabilities(lr=False))
        self._books.enter(reading, decision, applied=not refused, loss_seen=loss is not None)
        if refused:
            self._journal.event("skipped_by_deepspeed", step=reading.step, total=skipped, grad_norm=reading.grad_norm)


def _module_of(engine: Any) -> nn.Module:
    module = getattr(engine, "module", engine)
    return module if isinstance(module, nn.Module) else nn.Module()


def _call(engine: Any, name: str) -> Any:
    method = getattr(engine, name, None)
    return method() if callable(method) else None


def _scale(engine: Any) -> float | None:
    scale = getattr(getattr(engine, "optimizer", None), "cur_scale", None)
    return float(scale) if isinstance(scale, int | float) else None
