"""A capsule restored on stage: the user's own code with the capsule's state in it, and the failing step run again.

The code comes from a function that the caller names; nothing in a capsule is ever imported, called or opened. What
the function made is compared with the capsule first, so that a script that changed since gets one clear sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import isinstance
from ...engine import validate
from ...engine.config import GuardConfig
from ...engine.fault_barrier import UserCodeError
from ...engine.state.batch_buffer import pristine
from ...engine.state.forward_state import ForwardState
from ...engine.state.rng import put_rng, take_rng
from ...engine.state.training_state import TrainingState, Tree, copy_tree
from ...engine.step.trained_parameters import TrainedParameters
from ...engine.step.user_step import PRECISIONS, UserStep
from ...engine.step.window import Window
from ...records import Diagnosis, Finding, StepRecord, from_plain
from ...records.errors import CapsuleError, SteadyError, UsageError
from ..diagnose import diagnose
from ..replay.guard_step import GuardStep
from ..replay.replay_step import replay
from .capsule import Capsule, read_capsule
from .compatibility import batches_in_place, change_since

MAX_BYTES_TO_READ = 1 << 40
"""The caller named this capsule, so its size is no surprise; its hash is checked before it is loaded."""
_AUTOCAST = {"torch.bfloat16": torch.bfloat16, "torch.float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What running a capsule's step again showed."""

    step: int
    symptom: str
    reproduced: bool
    same_loss_bits: bool
    losses: tuple[float, ...]
    """The loss of every micro-batch, in the replay."""
    recorded_losses: tuple[float, ...]
    diagnosis: Diagnosis
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetup:
    """What the entry function returned, by name."""

    model: nn.Module
    optimizers: tuple[Optimizer, ...]
    loss_fn: Callable[[nn.Module, Any], Any]
    batches: Sequence[Any] | None = None
    extra_state: Mapping[str, Any] | None = None


def replay_capsule(
    folder: Path, entry: Callable[[], Any], *, depth: str = "full", as_it_was: bool = True
) -> ReplayResult:
    """Run the step in this capsule again, in the model, optimizer and loss that `entry()` returns, and diagnose it.

    Unless the code is `as_it_was`, a finite step says nothing about a fault that does not repeat: it may be repaired.
    Raises CapsuleError for a capsule that cannot be used or does not fit what `entry` made. Syncs with the host.
    """
    before = take_rng()
    try:
        return _replay(read_capsule(folder, max_bytes=MAX_BYTES_TO_READ), folder, entry, depth, as_it_was)
    finally:
        put_rng(before)


def _replay(capsule: Capsule, folder: Path, entry: Callable[[], Any], depth: str, as_it_was: bool) -> ReplayResult:
    staged = as_replay_setup(_called(entry))
    try:
        replayable, recorded, notes = _restage(capsule, staged)
    except SteadyError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        # The manifest is signed by no one: data of the wrong kind in the right place ends here.
        raise CapsuleError(f"The capsule in {folder} is corrupt ({type(error).__name__}: {error}).") from error
    with _outer_autocast(capsule, replayable.facts.device_type):
        losses, finite = _run(replayable)
        if finite and not as_it_was:
            found = Diagnosis(symptom="none", phase="none", because="the step is finite in the code as it is now")
        else:
            found = diagnose(replayable, depth=depth)
    same = len(losses) == len(recorded) and all(map(_same_bits, losses, recorded))
    symptom = replayable.facts.symptom or "none"
    return ReplayResult(
        step=capsule.step,
        symptom=symptom,
        # A spike is refused with finite numbers: it is reproduced when the very same loss comes out.
        reproduced=not finite or (symptom == "spike" and same),
        same_loss_bits=same,
        losses=tuple(float(loss) for loss in losses),
        recorded_losses=tuple(float(loss) for loss in recorded),
        diagnosis=found,
        notes=tuple(notes),
    )


def as_replay_setup(answer: Any) -> ReplaySetup:
    """What an entry function returned: (model, optimizer, loss_fn), or a mapping with these names."""
    if isinstance(answer, tuple | list) and len(answer) == 3:
        answer = dict(zip(("model", "optimizer", "loss_fn"), answer, strict=True))
    missing = [key for key in ("model", "optimizer", "loss_fn") if not isinstance(answer, Mapping) or key not in answer]
    if missing:
        raise UsageError(
            f"The entry function returned {type(answer).__name__} without {', '.join(missing)}: it must return "
            "(model, optimizer, loss_fn), or a mapping with these names."
        )
    if not isinstance(answer["model"], nn.Module) or not callable(answer["loss_fn"]):
        raise UsageError("The entry function must return a torch.nn.Module, its optimizer and a callable loss_fn.")
    return ReplaySetup(
        model=answer["model"],
        optimizers=validate.as_optimizers(answer["optimizer"]),
        loss_fn=answer["loss_fn"],
        batches=answer.get("batches"),
        extra_state=answer.get("extra_state"),
    )


def _called(entry: Callable[[], Any]) -> Any:
    try:
        return entry()
    except Exception as error:
        raise UsageError(f"The entry function raised {type(error).__name__}: {error}") from error


def _restage(capsule: Capsule, staged: ReplaySetup) -> tuple[GuardStep, list[Tensor], list[str]]:
    facts, model = capsule.facts, staged.model
    guarded = TrainedParameters(model, staged.loss_fn, staged.optimizers)
    names, parameters = guarded.names, guarded.parameters
    device = parameters[0].device
    precision = facts["precision"]
    if precision not in PRECISIONS:
        raise CapsuleError(f"The capsule speaks of a precision {precision!r} that this steadygrad does not know.")
    scaler = validate.make_scaler("fp16", None, device) if facts["scaler"] else None
    modules = [model] + ([staged.loss_fn] if isinstance(staged.loss_fn, nn.Module) else [])
    _set_modes(model, facts["eval_modules"])
    forward = ForwardState(modules)
    validate.register_scaler(forward, scaler)
    for name, (take, put) in (staged.extra_state or {}).items():
        forward.register(name, take, put)
    state = TrainingState(
        parameters=dict(zip(names, parameters, strict=True)), optimizers=staged.optimizers, forward=forward,
        scaler=scaler,
    )  # fmt: skip
    config = GuardConfig(precision=precision, accumulate=int(facts["accumulate"]))
    program = UserStep(model, staged.loss_fn, parameters, staged.optimizers, config, scaler, device)
    program.dropped_terms = tuple(facts["dropped_terms"])
    program.writes_batches = True  # every replay must be given the batch as it was
    notes = [*capsule.notes, *map(str, facts["notes"]), *_differences(facts, device, forward)]
    _put_in_place(capsule, staged, state, forward, notes)
    window = Window()
    for batch in batches_in_place(capsule, staged.batches, device):
        window.add(pristine(batch, clone=True), "", {}, window.entry or forward.take())
    limit = facts["max_grad_norm"]
    replayable = GuardStep(
        program=program, forward=forward, state=state, window=window, step=capsule.step,
        symptom=str(facts["symptom"]), findings=tuple(from_plain(Finding, found) for found in facts["findings"]),
        history=[from_plain(StepRecord, record) for record in facts["history"]],
        names={id(p): name for name, p in zip(names, parameters, strict=True)},
        max_grad_norm=None if limit is None else float(limit),
    )  # fmt: skip
    return replayable, [terms["loss"] for terms in capsule.state["terms"]], notes


def _set_modes(model: nn.Module, evaluating: Sequence[str]) -> None:
    for name, module in model.named_modules():
        module.training = validate.clean_name(name) not in set(evaluating)


@torch.no_grad()
def _put_in_place(
    capsule: Capsule, staged: ReplaySetup, state: TrainingState, forward: ForwardState, notes: list[str]
) -> None:
    """The capsule's state into the live objects, after it has been compared with them."""
    saved: Tree = dict(capsule.state)
    live = state.live()
    trained = {id(p) for p in live["parameters"].values()}
    frozen = {validate.clean_name(n): p for n, p in staged.model.named_parameters() if id(p) not in trained}
    if (change := change_since(capsule.facts, saved, live | {"frozen": frozen}, staged.optimizers)) is not None:
        raise CapsuleError(f"The capsule does not fit: the script changed since. {change}")
    for part in capsule.facts["left_out"]:
        notes.append(f"{part} were too large for the capsule: those of the entry function stand in")
    for name, tensor in frozen.items() if "frozen" in saved else ():
        tensor.data.copy_(saved["frozen"][name])
    here = {validate.clean_name(name): name for name in live["buffers"]}
    saved["buffers"] = {here[validate.clean_name(name)]: value for name, value in saved["buffers"].items()}
    # Under both names, for the model may be compiled here and not there; a name that is not known is passed over.
    saved["counters"] |= {name.replace("_orig_mod.", ""): value for name, value in saved["counters"].items()}
    for part in ("parameters", "optimizers"):
        saved.setdefault(part, copy_tree(live[part], torch.clone))
    if saved["rng"].get("numpy") is not None:
        # The step may draw from numpy's global state, and restoring it needs numpy to be there.
        try:
            import numpy  # noqa: F401
        except ImportError:
            saved["rng"] = {**saved["rng"], "numpy": None}
            notes.append("numpy is not installed here, so its random state was not restored")
    state.restore({**saved, "scheduler": None, "ema": None})


def _differences(facts: Mapping[str, Any], device: torch.device, forward: ForwardState) -> list[str]:
    """What is not as it was, and may move the last bits or more."""
    found = []
    here = {
        "device": device.type,
        "num_threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    for name, now in here.items():
        if facts[name] != now:
            found.append(f"{name.replace('_', ' ')} was {facts[name]} and is {now} here")
    lost = sorted(set(facts["extras"]) - set(forward.extras()))
    if lost:
        found.append(f"extra state {', '.join(map(str, lost))} was not restored: return it under 'extra_state'")
    return found


def _run(replayable: GuardStep) -> tuple[list[Tensor], bool]:
    """The loss of each micro-batch as the run computed it, and whether the whole step is finite."""
    losses = []
    try:
        with replayable.examining():
            replayable.restore()
            for batch in replayable.batches:
                terms = replayable.forward(batch)
                losses.append(terms["loss"].detach().to("cpu", copy=True))
                replayable.backward(terms)
            return losses, replay(replayable).finite
    except Exception as error:
        theirs = error.original if isinstance(error, UserCodeError) else error
        raise CapsuleError(
            "The step cannot be run again, so the script changed since the capsule was written, or it needs something "
            f"that the entry function does not set up: {type(theirs).__name__}: {theirs}"
        ) from theirs


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.numel() != b.numel():
        return False
    # A NaN has many spellings, and which one comes out is no property of the step.
    return bool(torch.equal(a, b)) or (math.isnan(float(a)) and math.isnan(float(b)))


def _outer_autocast(capsule: Capsule, device_type: str) -> AbstractContextManager[Any]:
    """The autocast that the user's own loop had around the guard."""
    dtype = _AUTOCAST.get(str(capsule.facts["outer_autocast"]))
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype=dtype)
