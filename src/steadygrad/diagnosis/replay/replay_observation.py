"""What one replay showed, in plain numbers, and the names of everything a step can change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ...detect.observations.step_observation import Gradient as Gradient
from ...detect.observations.step_observation import StepObservation, written_between
from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.readable_tensors import describable, has_values, holds_numbers, once, values_of, why_not_read
from ...detect.tensors.sharded_tensors import is_sharded, local_of
from ...detect.tensors.unregistered_tensors import stray_parameters
from ...engine.step.trained_parameters import states_of
from ..trace.trace_log import Touch
from .batch_tree import walk_batch as walk_batch
from .replayable import Replayable

Tensor = torch.Tensor
SAMPLED = 32
AT_ONCE = 1 << 24
"""Differences of so many entries are kept before their lengths are read."""


@dataclass(slots=True, kw_only=True)
class ReplayObservation(StepObservation):
    """The observation of a step that was replayed, with the places in its trace where bad values came out."""

    guilty_batch: int | None = None
    sinks: dict[tuple[str, str], Touch] = field(default_factory=dict)

    def see_batch(self, index: int, replayable: Replayable | None = None) -> None:
        """Remember the first micro-batch after which something is bad: by the loss, or by the gradients."""
        if self.guilty_batch is None:
            several = replayable is not None and len(replayable.batches) > 1  # of one there is nothing to be told
            grads = [p.grad for _, p in trainable(replayable) if p.grad is not None] if replayable and several else []
            if not self.loss_finite or not all(map(math.isfinite, absmaxes(grads))):
                self.guilty_batch = index


def complete(
    seen: ReplayObservation, replayable: Replayable, step: int, before: StepObservation | None
) -> ReplayObservation:
    """Fill in what is known of a replayed step beside its values: its number, what holds and rates its parameters, the
    sizes of its batch, what was written since the step `before` it. A host read for each entry of the batch."""
    names = parameter_names(replayable)
    groups = [group for optimizer in replayable.optimizers for group in optimizer.param_groups]
    held = {id(parameter) for group in groups for parameter in group["params"]}
    entries = [(k, v) for batch in replayable.batches for k, v in walk_batch(batch) if isinstance(v, Tensor)]
    strays = [(name, p.grad) for name, p in stray_parameters(replayable.model) if id(p) not in held]
    seen.step = step
    seen.rate = max((float(group["lr"] or 0.0) for group in groups), default=0.0)
    seen.rated = frozenset(names.get(id(p), "?") for group in groups if group["lr"] > 0 for p in group["params"])
    seen.dynamic_scale, seen.accumulation = replayable.facts.dynamic_scale, replayable.facts.accumulation
    seen.max_grad_norm = replayable.facts.max_grad_norm
    seen.has_optimizer = bool(replayable.optimizers)
    seen.trainable = tuple(name for name, _ in trainable(replayable))
    seen.held = frozenset(name for name, parameter in trainable(replayable) if id(parameter) in held)
    # What the model itself does not know gathers gradient from step to step, because nothing clears it.
    seen.strays = tuple(name for name, grad in strays if grad is not None and bool((grad != 0).any()))
    seen.entry_sizes = {key: value.numel() for key, value in entries}
    seen.entry_peaks = {key: absmax(value) for key, value in entries}
    seen.written = written_between(before, seen) if before is not None else frozenset()
    seen.followers = _followers(replayable, before.followers if before is not None else {})
    return seen


def _followers(replayable: Replayable, before: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Half-precision weights without gradient: version and checksum. Values are read only of those that were written
    since."""
    found = {}
    for name, weight in replayable.model.named_parameters():
        if weight.requires_grad or not weight.numel() or weight.dtype not in (torch.float16, torch.bfloat16):
            continue
        known = before.get(name)
        if known is not None and known[0] == weight._version:
            found[name] = known
        else:
            bits = weight.detach().contiguous().view(torch.int16).to(torch.int64).sum()
            found[name] = (weight._version, int(bits))
    return found


def absmax(tensor: Tensor) -> float:
    """Largest magnitude on the host: NaN wins, then inf."""
    return absmaxes([tensor])[0]


def absmaxes(tensors: Iterable[Tensor]) -> list[float]:
    """`absmax` of each, with one host read for each device."""
    return _norms([_readable(tensor, _magnitudes) for tensor in tensors], math.inf, None)


def norm_of(tensor: Tensor) -> float:
    """The length on the host. In float64: of finite numbers it is finite."""
    return norms_of([tensor])[0]


def norms_of(tensors: Iterable[Tensor]) -> list[float]:
    """`norm_of` each, with one host read for each device."""
    return _norms([_readable(tensor, _wider_than_a_byte) for tensor in tensors], 2.0, torch.float64)


def lengths_between(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[float]:
    """`norm_of` the way from each tensor, wherever it lies, to the other. Only some differences exist at a time."""
    found: list[float] = []
    some: list[Tensor] = []
    for before, now in pairs:
        some.append(_wide(now.detach()) - _wide(before.to(now.device)))
        if sum(each.numel() for each in some) >= AT_ONCE:
            found += norms_of(some)
            some.clear()
    return found + norms_of(some)


def _wide(tensor: Tensor) -> Tensor:
    """A tensor whose differences are exact enough to be measured."""
    return tensor.to(torch.float32) if tensor.is_floating_point() and tensor.dtype.itemsize < 4 else tensor


def _readable(tensor: Tensor, prepared: Callable[[Tensor], Tensor]) -> Tensor | None:
    """The numbers to be read of a tensor, those that a sparse one stores, or a shard; None where there are none.

    A shard of a mesh reads itself, with all ranks together. What cannot be described is left alone.
    """
    if is_sharded(tensor):
        return tensor.detach() if tensor.is_floating_point() and tensor.numel() else None
    values = values_of(tensor)
    if values is None or not holds_numbers(values):
        return None
    return prepared(values.detach())


def _magnitudes(values: Tensor) -> Tensor:
    values = once(values)[0]
    return _wider_than_a_byte(torch.view_as_real(values.resolve_conj()) if values.is_complex() else values)


def _wider_than_a_byte(values: Tensor) -> Tensor:
    return values if values.dtype.itemsize > 1 else values.to(torch.float32)


def _norms(tensors: Sequence[Tensor | None], order: float, dtype: torch.dtype | None) -> list[float]:
    """A norm of each; 0 where there are no numbers. All of one device and dtype in one call, which counts for models
    of thousands of tensors."""
    found: list[Tensor | float] = [0.0] * len(tensors)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is None:
            continue
        if type(tensor) is Tensor and tensor.is_floating_point():
            alike.setdefault((tensor.device, tensor.dtype), []).append(index)
        else:
            wide = torch.complex128 if dtype is not None and tensor.is_complex() else dtype
            found[index] = torch.linalg.vector_norm(tensor, order, dtype=wide)
    for indices in alike.values():
        norms = torch._foreach_norm([tensors[index] for index in indices], order, dtype=dtype)  # type: ignore[misc]
        for index, norm in zip(indices, norms, strict=True):
            found[index] = norm
    return _read(found)


def _read(numbers: Sequence[Tensor | float]) -> list[float]:
    """Numbers that lie on devices, in order. A tensor of a subclass (a shard of a mesh) is read alone, as it wants."""
    together: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, number in enumerate(numbers):
        if type(number) is Tensor:
            together.setdefault((number.device, number.dtype), []).append(index)
    found = {index: float(number) for index, number in enumerate(numbers) if type(number) is not Tensor}
    for indices in together.values():
        stacked = torch.stack([torch.as_tensor(numbers[index]) for index in indices])
        found |= dict(zip(indices, stacked.to(torch.float64).tolist(), strict=True))
    return [found[index] for index in range(len(numbers))]


def samples_of(replayable: Replayable) -> dict[str, tuple[float, ...]]:
    """A few entries of every parameter, evenly spread. One host read for each device."""
    names: dict[torch.device, list[tuple[str, int]]] = {}
    parts: dict[torch.device, list[Tensor]] = {}
    for name, parameter in replayable.model.named_parameters():
        own = local_of(parameter.detach())
        if has_values(own) and own.is_floating_point():
            flat = own.reshape(-1)
            some = flat[:: max(1, flat.numel() // SAMPLED)][:SAMPLED].to(torch.float64)
            names.setdefault(parameter.device, []).append((name, some.numel()))
            parts.setdefault(parameter.device, []).append(some)
    found: dict[str, tuple[float, ...]] = {}
    for device, tensors in parts.items():
        values = iter(torch.cat(tensors).tolist())
        for name, count in names[device]:
            found[name] = tuple(next(values) for _ in range(count))
    return found


def named_state(replayable: Replayable) -> Iterator[tuple[str, str, Tensor]]:
    """(kind, name, tensor) of everything that outlives a step and has values: parameters, buffers, optimizer state."""
    names, model = parameter_names(replayable), replayable.model
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if is_sharded(tensor) or describable(tensor):
                yield kind, name, tensor
    for optimizer in replayable.optimizers:
        for parameter, state in states_of(optimizer):
            owner = names.get(id(parameter), "")
            for key, value in state.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    yield "optimizer", f"{owner}/{key}", local_of(value)


def parameter_names(replayable: Replayable) -> dict[int, str]:
    return {id(parameter): name for name, parameter in replayable.model.named_parameters()} | dict(
        replayable.facts.parameter_names
    )


def trainable(replayable: Replayable) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in replayable.model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def unread_state(replayable: Replayable) -> list[str]:
    """Parameters and buffers whose numbers no examination reads, each with the reason."""
    whole = [*replayable.model.named_parameters(), *replayable.model.named_buffers()]
    reasons = ((name, why_not_read(tensor)) for name, tensor in whole if not is_sharded(tensor))
    return [f"{name} ({why})" for name, why in reasons if why is not None and "sparse" not in why]
