"""A trainer's checkpoints: none with a NaN in it is written as good, chosen as best, or trained on from.

Beside each checkpoint lies `steady.json` with the guard's own counters and baselines, so that a resumed run decides
like one that was never interrupted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...detect.history import History
from ...detect.tensors.foreign_objects import hasattr, isinstance
from ...engine.state.training_state import bad_state
from ...journal.safe_files import json_bytes, read_json, replace_file
from ...policy.escalation import Ledger
from ...records.errors import SteadyError, UsageError
from ...records.plain_data import from_plain
from ..loops.patching import Patches
from .trainer_log import is_finite_metric

if TYPE_CHECKING:
    from ..loops.loop_guard import LoopGuard

logger = logging.getLogger("steadygrad")
COUNTERS = "steady.json"
_SHOWN = 3


class CheckpointGate:
    """Between a trainer and its checkpoint folders."""

    def __init__(self, trainer: Any, patches: Patches, loop: Callable[[], LoopGuard | None]) -> None:
        self._trainer = trainer
        self._loop = loop
        self.refused: list[int] = []
        """The steps whose checkpoint was not written."""
        self.resumed_from: str | None = None
        patches.around(trainer, "_save_checkpoint", self._save)
        patches.around(trainer, "_load_best_model", self._load_best)
        patches.around(trainer, "_load_optimizer_and_scheduler", self._load_optimizer)
        if hasattr(trainer, "_determine_best_metric"):
            patches.around(trainer, "_determine_best_metric", self._judge_metric)

    # -- writing

    def _save(self, original: Callable[..., Any], model: Any, trial: Any, *args: Any, **kwargs: Any) -> Any:
        loop, step = self._loop(), int(self._trainer.state.global_step)
        if loop is not None:
            loop.settle()
            bad = _bad_names(loop)
            if loop._engine.consensus.any("checkpoint", bool(bad)):
                self.refused.append(step)
                loop._engine.log.journal.event("checkpoint_refused", step=step, names=bad[:20])
                logger.error(
                    "checkpoint-%d was not written: %s not finite, so whoever loads it would train on that. "
                    "The checkpoints before it are as they were.", step, _listed(bad),
                )  # fmt: skip
                return None
        answer = original(model, trial, *args, **kwargs)
        if loop is not None and self._trainer.args.should_save:
            with loop._engine.barrier("checkpoints", None):
                folder = Path(self._trainer._get_output_dir(trial=trial)) / f"checkpoint-{step}"
                if folder.is_dir():
                    engine = loop._engine
                    tree = engine.recovery.log_tree(engine.step, engine.batches_seen)
                    replace_file(folder / COUNTERS, json_bytes(tree))
                    loop.checkpoint_saved(folder)
        return answer

    # -- choosing the best

    def _judge_metric(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        metrics = kwargs.get("metrics", args[0] if args else {})
        wanted = self._trainer.args.metric_for_best_model
        if wanted is not None and metrics:
            name = wanted if wanted.startswith("eval_") else f"eval_{wanted}"
            if name in metrics and not is_finite_metric(metrics[name]):
                logger.warning("%s is %s, so step %d cannot be the best one.", name, metrics[name], self._step())
                return False
        loop = self._loop()
        bad = _bad_names(loop) if loop is not None else []
        if loop is not None and loop._engine.consensus.any("best", bool(bad)):
            logger.warning("step %d cannot be the best one: %s not finite.", self._step(), _listed(bad))
            return False
        return original(*args, **kwargs)

    def _load_best(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        folder = self._trainer.state.best_model_checkpoint
        if folder is not None and (bad := non_finite_weights(Path(folder))):
            logger.error(
                "The best checkpoint %s was not loaded: %s not finite in it. The model keeps the weights it has.",
                folder, _listed(bad),
            )  # fmt: skip
            return None
        return original(*args, **kwargs)

    # -- resuming

    def _load_optimizer(self, original: Callable[..., Any], checkpoint: Any, *args: Any, **kwargs: Any) -> Any:
        self.resumed_from = checkpoint
        return original(checkpoint, *args, **kwargs)

    def resume(self, loop: LoopGuard) -> None:
        """After a checkpoint was loaded: refuse a poisoned one, and go on counting where it left off."""
        checkpoint, self.resumed_from = self.resumed_from, None
        if checkpoint is None:
            return
        bad = _bad_names(loop)
        if loop._engine.consensus.any("resume", bool(bad)) and loop.policy.acts:
            raise UsageError(
                f"{checkpoint} is poisoned: {_listed(bad)} not finite, and every step from there would be lost. "
                f"Resume from an earlier checkpoint{_earlier(Path(checkpoint))}."
            )
        path = Path(checkpoint) / COUNTERS
        if not path.is_file():
            return
        with loop._engine.barrier("checkpoints", None):
            try:
                _put_log(loop, read_json(path))
            except (SteadyError, KeyError, TypeError, ValueError) as error:
                logger.warning("The guard's counters in %s cannot be read (%s); it counts from zero.", path, error)

    def _step(self) -> int:
        return int(self._trainer.state.global_step)


def non_finite_weights(folder: Path) -> list[str]:
    """The weights in a checkpoint folder that are not finite, read one at a time and without running any pickle."""
    return [name for name, tensor in _weights(folder) if tensor.is_floating_point() and not _is_finite(tensor)]


def _weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - an opened file is no dict
                yield name, opened.get_tensor(name)
    for kind in ("pytorch_model*.bin", "adapter_model*.bin"):
        for path in sorted(folder.glob(kind)):
            yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _bad_names(loop: LoopGuard) -> list[str]:
    """Weights, moments and buffers that are not finite now. One host read."""
    found = bad_state(loop._engine.parts.state)
    return [name for names in found.values() for name in names]


def _put_log(loop: LoopGuard, log: dict[str, Any]) -> None:
    engine = loop._engine
    ledger = from_plain(Ledger, log["ledger"])
    # Who resumes a halted run has decided to go on.
    engine.log.ledger = ledger.but(halted=False, streak=0) if ledger.halted else ledger
    engine.log.history = History.from_plain(_numbers(log["history"]))
    engine.step, engine.batches_seen = int(log["step"]), int(log["batches_seen"])


def _numbers(value: Any) -> Any:
    """Undo the strings that stand for non-finite numbers in JSON."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def _earlier(checkpoint: Path) -> str:
    """The newest sibling whose weights are finite, in words."""
    siblings = sorted(
        (path for path in checkpoint.parent.glob("checkpoint-*") if _number(path) < _number(checkpoint)),
        key=_number, reverse=True,
    )  # fmt: skip
    good = next((path for path in siblings if not non_finite_weights(path)), None)
    return f", such as {good}" if good is not None else ""


def _number(path: Path) -> int:
    tail = path.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else -1


def _listed(names: list[str]) -> str:
    if not names:
        return "something on another rank is"
    more = f" and {len(names) - _SHOWN} more are" if len(names) > _SHOWN else " is" if len(names) == 1 else " are"
    return ", ".join(names[:_SHOWN]) + more
