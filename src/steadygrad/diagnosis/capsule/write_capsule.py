"""The guard's capsule of a refused step: what goes in, what is left out when it grows too large, and saying so.

Called right after a refusal, when weights, moments, buffers and random numbers are those from before the step again.
Reads them and changes nothing. Copies to the host, so it syncs and allocates up to the size limit, once for each
kind of incident. A disk that fails, or a state that cannot be kept without code, is told and never raised.

Batches are stored as they are unless the guard was made with capsule="redact" or "off".
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from ...detect.tensors.foreign_objects import hasattr, isinstance
from ...detect.tensors.nested_tensors import named_tensors_in, tensors_in
from ...detect.tensors.sharded_tensors import local_of
from ...engine.record.run_log import RunLog
from ...engine.state.rng import rng_to_plain
from ...engine.state.safetensors_packing import pack
from ...engine.state.training_state import TrainingState, Tree
from ...engine.step.user_step import UserStep
from ...engine.step.window import Window
from ...engine.validate import clean_name
from ...journal.run_directory import incident_name
from ...records import Finding
from ...records.errors import CapsuleError, SteadyError
from .capsule import TENSORS, write_capsule


def keep_capsule(
    program: UserStep,
    state: TrainingState,
    log: RunLog,
    window: Window,
    findings: Sequence[Finding],
    max_grad_norm: float | None,
    *,
    batch: str,
    max_bytes: int,
    weights_on: int | None = None,
) -> None:
    """Write the capsule of the newest incident beside it. Never raises for a disk or a value that refuses.

    `weights_on`: the rank that keeps the weights where all ranks have the same ones; None keeps them here.
    """
    incident = log.incidents[-1]
    elsewhere = weights_on is not None and weights_on != log.journal.rank
    try:
        folder = log.journal.incident_directory(incident.number)
        if folder is None:
            return
        batches, notes = _kept_batches(program, window)
        tree, left_out = _state_tree(program, state, window), list(_WEIGHTS) if elsewhere else []
        tree = {key: value for key, value in tree.items() if key not in left_out}
        tree, too_large = _fitting(tree, batches if batch == "keep" else [], max_bytes)
        left_out += too_large
        size = _bytes_of(tree) + (_bytes_of(batches) if batch == "keep" else 0)
        free = shutil.disk_usage(folder).free
        if size > free // 2:
            raise CapsuleError(f"It would take {size:,} bytes, more than half of the {free:,} left on that disk.")
        facts = _facts(program, state, log, window, findings, max_grad_norm)
        facts |= {"symptom": incident.symptom, "left_out": left_out, "notes": notes}
        write_capsule(
            folder, step=incident.last_step, state=tree, batches=batches, facts=facts, batch=batch, max_bytes=max_bytes
        )
    except (OSError, SteadyError, SafetensorError, TypeError, ValueError) as error:
        # The last two are safetensors' and torch's words for what they cannot hold, such as an array of objects.
        log.journal.event("capsule_not_kept", incident=incident.number, why=str(error)[:500])
        log.show(f"incident {incident.number} has no capsule: {error}", kind="capsule")
        return
    rank = weights_on if weights_on is not None else log.journal.rank
    part = f"rank{rank}/" if rank else ""
    log.enter_capsule(f"incidents/{incident_name(incident.number)}/{part}{TENSORS}")


_WEIGHTS = ("frozen", "parameters", "optimizers")


def _state_tree(program: UserStep, state: TrainingState, window: Window) -> Tree:
    """What the step depends on. The schedule and a moving average come after a step and are not needed to redo it."""
    live = state.live()
    trained = {id(parameter) for parameter in program.parameters}
    frozen = {clean_name(n): local_of(p) for n, p in program.model.named_parameters() if id(p) not in trained}
    tree = {key: live[key] for key in ("parameters", "optimizers", "buffers", "counters", "scaler")}
    tree["rng"] = rng_to_plain(live["rng"])
    return tree | {"extras": _packable(live["extras"]), "frozen": frozen, "terms": list(window.terms)}


def _packable(extras: Mapping[str, Any]) -> dict[str, Any]:
    """The user's registered state as far as it can be kept; what is missing on replay is told there by name."""
    kept = {}
    for name, value in extras.items():
        try:
            pack(value)
        except SteadyError:
            continue
        kept[name] = value
    return kept


def _fitting(tree: Tree, batches: Sequence[Any], max_bytes: int) -> tuple[Tree, list[str]]:
    """The tree within the limit: frozen weights go first, then all weights and moments; the rest is what is small."""
    left_out: list[str] = []
    for parts in (("frozen",), ("parameters", "optimizers")):
        if _bytes_of(tree) + _bytes_of(list(batches)) <= max_bytes:
            break
        if any(_bytes_of(tree.get(part)) for part in parts):
            tree = {key: value for key, value in tree.items() if key not in parts}
            left_out += parts
    return tree, left_out


def _bytes_of(tree: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(tree))


def _kept_batches(program: UserStep, window: Window) -> tuple[list[Any], list[str]]:
    notes: set[str] = set()
    batches = [_plain(batch, notes) for batch in window.batches]
    if program.writes_batches:
        notes.add("loss_fn writes into its batch, so the batch may not be the one it was given")
    return batches, sorted(notes)


def _plain(value: Any, notes: set[str]) -> Any:
    """A batch in containers that can be read back without importing anyone's class."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise CapsuleError(f"The batch holds a tensor of layout {value.layout}, which safetensors cannot keep.")
        return value
    if isinstance(value, Mapping) or (hasattr(value, "items") and hasattr(value, "keys")):
        if type(value) is not dict:
            notes.add(f"a {type(value).__name__} in the batch is kept as a dict")
        return {key: _plain(item, notes) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if type(value) not in (list, tuple):
            notes.add(f"a {type(value).__name__} in the batch is kept as a plain sequence")
        items = [_plain(item, notes) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if type(value).__module__ == "numpy" and hasattr(value, "shape") and value.shape:
        notes.add("a numpy array in the batch is kept as a tensor")
        return torch.as_tensor(value)
    return value


def _facts(
    program: UserStep,
    state: TrainingState,
    log: RunLog,
    window: Window,
    findings: Sequence[Finding],
    max_grad_norm: float | None,
) -> dict[str, Any]:
    """Everything else the numbers depend on, as plain data."""
    kind, scaler = program.device.type, program.scaler
    outer = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return {
        "findings": list(findings),
        "history": [replace(record, norms=(), terms={}) for record in log.recent],
        "precision": program.precision,
        "outer_autocast": None if outer is None else str(outer),
        "accumulate": program.accumulate,
        "max_grad_norm": max_grad_norm,
        "dropped_terms": list(program.dropped_terms),
        "scaler": scaler is not None,
        "eval_modules": [clean_name(n) for n, module in program.model.named_modules() if not module.training],
        "device": kind,
        "batch_on_device": [
            [key for key, tensor in named_tensors_in(batch) if tensor.device.type == kind] for batch in window.batches
        ],
        "optimizers": [
            {"type": type(each).__name__, "sizes": [len(group["params"]) for group in each.param_groups]}
            for each in program.optimizers
        ],
        "extras": sorted(state.live()["extras"]),
        "num_threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
