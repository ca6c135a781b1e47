"""DeepSpeed, watched and not guarded: its engine judges and skips steps by itself, on its own flat partitions.

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

from ..detect.tensors.foreign_objects import isinstance
from ..engine import validate
from ..engine.distributed.collectives import world_size
from ..policy import Policy
from ..records import Finding, Incident
from ..records.errors import UsageError
from .loops.patching import wrap_method
from .loops.reported_loop import ReportedLoop

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
        rank = dist.get_rank() if world_size() > 1 else 0
        names = [validate.clean_name(name) for name, _ in _module_of(engine).named_parameters()]
        self._loop = ReportedLoop(names, run_dir=run_dir, rank=rank)
        self._loss: Tensor | float | None = None
        self._skipped_before = int(getattr(engine, "skipped_steps", 0))
        self._undo: list[Callable[[], Any]] = [
            wrap_method(engine, "backward", self._around_backward),
            wrap_method(engine, "step", self._around_step),
        ]
        if rank == 0:
            logger.warning("DeepSpeed is watched, not guarded: it skips steps by itself, and nothing is undone here.")

    # -- what a user calls

    @property
    def incidents(self) -> list[Incident]:
        return self._loop.incidents

    @property
    def vitals(self) -> list[Finding]:
        return self._loop.vitals

    def summary(self) -> dict[str, Any]:
        """The counts of the run; `skipped` are those that the engine says it skipped."""
        return self._loop.summary()

    def settle(self) -> None:
        """Steps are recorded as they happen, so there is nothing to wait for."""

    def close(self) -> None:
        """Let go of the engine and close the journal. Safe to call twice."""
        while self._undo:
            self._undo.pop()()
        self._loop.close()

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
            with self._loop.barrier("deepspeed", None):
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
        loss, self._loss = self._loss, None
        number = self._loop.step
        self._loop.report(
            None if loss is None else float(loss), None if norm is None else float(norm), scale=_scale(self._engine),
            skipped=bool(refused),
        )  # fmt: skip
        if refused:
            self._loop.journal.event("skipped_by_deepspeed", step=number, total=skipped)


def _module_of(engine: Any) -> nn.Module:
    module = getattr(engine, "module", engine)
    return module if isinstance(module, nn.Module) else nn.Module()


def _call(engine: Any, name: str) -> Any:
    method = getattr(engine, name, None)
    return method() if callable(method) else None


def _scale(engine: Any) -> float | None:
    scale = getattr(getattr(engine, "optimizer", None), "cur_scale", None)
    return float(scale) if isinstance(scale, int | float) else None
