"""What happens once, when a guard is made: checking arguments, naming parameters, making a scaler."""

from __future__ import annotations

import inspect
import logging
import platform
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .. import __version__
from ..detect.tensors.foreign_objects import isinstance
from ..detect.tensors.quiet_hook import QuietHook, registered
from ..policy import Policy
from ..records.errors import UsageError
from .fault_barrier import FaultBarrier
from .record.memory_use import free_host_bytes
from .state.checkpoint_store import NEVER, CheckpointStore
from .state.forward_state import ForwardState
from .state.snapshot_ring import SnapshotRing
from .state.training_state import TrainingState, restore_scaler
from .step.device_gate import check_supported
from .step.trained_parameters import clean_name as clean_name

logger = logging.getLogger("steadygrad")
_ALWAYS_FREE = 16 << 20
"""So much memory is there without asking: a program may begin thousands of trainings."""
_CLAIMS: weakref.WeakKeyDictionary[Optimizer, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def check_steps_alone(optimizers: Sequence[Optimizer]) -> None:
    """Refuse one whose step() cannot be called without a closure: `sg.Guard` computes the loss itself, once."""
    for each in optimizers:
        first = [*inspect.signature(type(each).step).parameters.values()][1:2]
        if any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in first):
            raise UsageError(
                f"{type(each).__name__}.step() needs a {first[0].name} and evaluates the loss by itself, so sg.Guard "
                "cannot make its updates. Keep your own loop and use sg.attach(optimizer, model=model)."
            )


def as_optimizers(optimizer: Any, *, monitor: bool = False) -> tuple[Optimizer, ...]:
    """One or several optimizers as a tuple, each one that can be guarded and not guarded already."""
    optimizers = tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)
    if not optimizers:
        raise UsageError("Guard was given no optimizer.")
    for each in optimizers:
        check_supported(each, monitor=monitor)
        claim = _CLAIMS.get(each)
        if claim is not None and claim() is not None:
            raise UsageError(
                f"This {type(each).__name__} is already guarded. Two guards on one optimizer would both refuse and "
                "both count; close() the first one."
            )
    return optimizers


def claim(optimizers: Sequence[Optimizer], owner: weakref.ref[Any]) -> None:
    for optimizer in optimizers:
        _CLAIMS[optimizer] = owner


def is_claimed(optimizer: Optimizer) -> bool:
    """Whether a guard that is still there looks after this optimizer."""
    owner = _CLAIMS.get(optimizer)
    return owner is not None and owner() is not None


def release(optimizers: Sequence[Optimizer]) -> None:
    for optimizer in optimizers:
        _CLAIMS.pop(optimizer, None)


def make_scaler(precision: str, scaler: Any, device: torch.device) -> Any:
    """The user's GradScaler, or our own for fp16, with its device numbers made now so that they can be copied."""
    if scaler is None and precision == "fp16":
        scaler = torch.amp.GradScaler(device.type)
    if scaler is None or not scaler.is_enabled():
        return None
    if scaler._scale is None:
        scaler._lazy_init_scale_growth_tracker(device)
    return scaler


def register_scaler(forward: ForwardState, scaler: Any) -> None:
    """Scale and growth tracker are part of what a refused step must not move."""
    if scaler is not None:
        forward.register(
            "steadygrad.scaler",
            lambda: {"scale": scaler._scale.clone(), "growth": scaler._growth_tracker.clone()},
            lambda saved: restore_scaler(scaler, saved),
        )


def ema_update(ema: Any, model: nn.Module) -> Callable[[], Any] | None:
    """How to advance the user's moving average after an applied update."""
    if ema is None:
        return None
    if hasattr(ema, "update_parameters"):
        return lambda: ema.update_parameters(model)
    if hasattr(ema, "update"):
        return lambda: ema.update()
    if callable(ema):
        return lambda: ema(model)
    raise UsageError(f"ema must have update_parameters(model) or update(), or be callable; got {type(ema).__name__}.")


def settle_before_others_look(model: nn.Module, optimizers: Sequence[Optimizer], owner: weakref.ref[Any]) -> list[Any]:
    """Whoever saves, loads or evaluates between steps must see the last step settled: buffers may still hold what a
    refused forward wrote, and fused SGD's momentum what a refused first step left there. Costs one host call per
    state_dict or outside forward, none inside a step."""

    def settle_last_step(*_: Any) -> None:
        guard = owner()
        if guard is not None:
            guard.settle()

    def raise_theirs(error: Exception) -> None:
        """`settle` deals with its own faults: what it raises is the program's error, or a halt."""
        raise error

    settle = QuietHook(settle_last_step, raise_theirs)
    places: list[Any] = [model.register_state_dict_pre_hook, model.register_load_state_dict_pre_hook]
    for optimizer in optimizers:
        places += [optimizer.register_state_dict_pre_hook, optimizer.register_load_state_dict_pre_hook]
    if any(True for _ in model.buffers()):
        places.append(model.register_forward_pre_hook)
    return [registered(place, settle) for place in places]


def batch_namer(batch_key: Callable[[Any], str] | None, barrier: FaultBarrier) -> Callable[[Any, int], str]:
    """How a batch is called in the journal: as the user says, or by counting."""

    def name(batch: Any, count: int) -> str:
        if batch_key is None:
            return str(count)
        with barrier("batch_key", str(count)) as answer:
            answer.value = str(batch_key(batch))
        return answer.value

    return name


def run_config(policy: str, precision: str, accumulate: int, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """What ran, for run.json. No environment, no secrets beyond the command line itself."""
    return {
        "command": [sys.executable, *sys.argv],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "steadygrad": __version__,
        "policy": policy,
        "precision": precision,
        "accumulate": accumulate,
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
    }


def make_ring(where: str, state: TrainingState, device: torch.device, policy: Policy) -> SnapshotRing | None:
    """The ring of last good states, if there is to be one and the host has space for it."""
    if where == "off" or (where == "auto" and not policy.acts):
        return None
    size = sum(t.numel() * t.element_size() for _, t in state.floating_tensors())
    needed = 6 * size  # two states of up to three times the weights
    if where == "auto" and needed > _ALWAYS_FREE and needed > free_host_bytes():
        logger.warning(
            "no snapshots: two copies of the training state would not fit comfortably in host memory. Bad updates are "
            "still refused; pass snapshots='host' or 'device' to keep a ring for rollbacks anyway."
        )
        return None
    return SnapshotRing(state, device=device, on_device=where == "device")


def make_store(
    run_dir: Path | None, state: TrainingState, every: int | None, keep: int, resume: bool, rank: int = 0
) -> CheckpointStore | None:
    """Where checkpoints go, if any are to be written or read. Every rank has its own part of them."""
    if run_dir is None or (every is None and not resume):
        return None
    folder = run_dir / "snapshots" / f"rank{rank}" if rank else run_dir / "snapshots"
    return CheckpointStore(folder, state, every=every or NEVER, keep=keep)
