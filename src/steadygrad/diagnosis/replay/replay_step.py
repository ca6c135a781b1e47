"""One step of a patient run again, part by part, with what was seen of it in plain numbers.

Everything a diagnosis learns or tries is a replay: `replay(replayable)` restores the state, runs the step and says
which losses, gradients, weights, moments and buffers came out non-finite. A tracer may listen, an operation may
change one thing. Replaying syncs with the host; it happens only after a step was refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.readable_tensors import has_values
from ...detect.tensors.torch_private import dynamo_is_loaded
from ...detect.tensors.unregistered_tensors import plain_tensors
from ...records.rerun_flag import rerun
from ..isolation import device_memory as memory
from ..isolation.index_bounds import BoundsChecked, no_unseen_kernels
from ..isolation.resource_limits import fits, limits
from ..trace.tracer import Tracer
from .batch_tree import walk_batch
from .offloaded import offloaded
from .replay_observation import (
    Gradient,
    ReplayObservation,
    absmax,
    absmaxes,
    lengths_between,
    named_state,
    norms_of,
    parameter_names,
    samples_of,
    trainable,
)
from .replayable import Replayable

Tensor = torch.Tensor
CANNOT_RUN = (Exception,)
"""What user code may raise on other rows, types or gradients than it was written for: anything. It is an answer."""


class ReplayChange:
    """What a trial changes, at each point where something can be changed. Every hook is a harmless default."""

    def around(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def prepared(self, replayable: Replayable) -> None: ...
    def batch(self, replayable: Replayable, batch: Any) -> Any:
        return batch

    def terms(self, terms: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return terms

    def wants_backward(self, seen: ReplayObservation) -> bool:
        return True

    def after_backward(self, replayable: Replayable) -> None: ...
    def commit(self, replayable: Replayable, seen: ReplayObservation) -> None:
        replayable.commit()

    alters_rows = False
    """Whether a step with this change has other rows than it had."""
    alters_values = True
    """Whether an index may be computed otherwise than it was."""

    def undo(self, replayable: Replayable) -> None:
        """Restore what `restore` does not (dtypes, optimizer options)."""


def replay(
    replayable: Replayable,
    *,
    tracer: Tracer | None = None,
    change: ReplayChange | None = None,
    until: str = "commit",
    batches: Sequence[Any] | None = None,
    restore: bool = True,
    prepare: Callable[[], None] | None = None,
    thorough: bool = True,
    altered: bool = False,
    stop_if_bad: bool = False,
) -> ReplayObservation:
    """Run the step again. `until` is "forward", "backward" or "commit". Raises what the user's code raises.

    `altered` says that `batches` have other rows than any batch of the run had: then, and under a change, index bounds
    are checked before a kernel is launched. Unless `thorough`, the tracer stops listening as soon as something bad is
    there to be explained. With `stop_if_bad` a step whose loss is not finite ends with its forward pass.
    """
    limits().check()
    stop_if_bad = stop_if_bad or limits().least
    with rerun():
        return _replay(
            replayable, tracer, change or ReplayChange(), until, batches, restore, prepare, thorough, altered,
            stop_if_bad,
        )  # fmt: skip


def _replay(
    replayable: Replayable,
    tracer: Tracer | None,
    change: ReplayChange,
    until: str,
    batches: Sequence[Any] | None,
    restore: bool,
    prepare: Callable[[], None] | None,
    thorough: bool,
    altered: bool,
    stop_if_bad: bool,
) -> ReplayObservation:
    seen = ReplayObservation()
    if restore:
        replayable.restore()
    (prepare or replayable.prepare)()
    change.prepared(replayable)
    state = list(named_state(replayable))
    sizes = {
        (kind, name): size
        for (kind, name, _), size in zip(state, absmaxes(tensor for *_, tensor in state), strict=True)
    }
    seen.samples = samples_of(replayable) if until == "commit" else {}
    seen.largest = {name: size for (kind, name), size in sizes.items() if kind == "parameter"}
    # A buffer of infinities is a mask until something turns it into NaN.
    masks = {key for key, size in sizes.items() if key[0] == "buffer" and math.isinf(size)}
    seen.bad_before = [key for key, size in sizes.items() if not math.isfinite(size) and key not in masks]
    lying = [(name, p.grad) for name, p in replayable.model.named_parameters() if p.grad is not None]
    sizes_of_them = absmaxes(grad for _, grad in lying)
    seen.bad_before += [
        ("grad", name) for (name, _), size in zip(lying, sizes_of_them, strict=True) if not math.isfinite(size)
    ]
    with ExitStack() as stack:
        stack.enter_context(change.around())
        stack.enter_context(_checked(replayable, change, altered))
        entered = stack.enter_context(_entering(replayable, seen, tracer))
        if limits().offloads:
            stack.enter_context(offloaded(named_state(replayable), tracer))
        for index, batch in enumerate(replayable.batches if batches is None else batches):
            batch = change.batch(replayable, batch)
            if tracer is not None:
                name_leaves(replayable, tracer, batch)
            with _listening(tracer, "forward"):
                terms = replayable.forward(batch)
            _see_terms(terms, seen, tracer)
            seen.see_batch(index)
            if until == "forward" or (stop_if_bad and not seen.loss_finite):
                seen.backward_ran = seen.backward_ran and until == "forward"
                continue
            if not any(term.requires_grad for term in terms.values()):
                seen.backward_ran = False
                continue
            if not change.wants_backward(seen):
                seen.backward_ran = False
                continue
            with _listening(tracer if thorough or seen.loss_finite else None, "backward"):
                replayable.backward(change.terms(terms))
            del terms
            seen.see_batch(index, replayable)
        if until == "forward" or (stop_if_bad and not seen.loss_finite):
            return seen
        # Read now: a home-made scale may have been changed while the loop prepared this step.
        seen.loss_scale = getattr(replayable, "loss_scale", replayable.facts.loss_scale)
        change.after_backward(replayable)
        _see_gradients(replayable, seen, tracer)
        if until == "backward":
            return seen
        parameters = dict(trainable(replayable))
        keep = memory.copied if fits(list(parameters.values())) else memory.copied_to_host
        before = {name: keep(parameter) for name, parameter in parameters.items()}
        del parameters
        seen.weight_norm = math.hypot(*norms_of(before.values()))
        entered.armed = True
        explained = not seen.loss_finite or bool(seen.bad_gradients)
        with _listening(tracer if thorough or not explained else None, "commit"):
            change.commit(replayable, seen)
        kept = [(name, now) for name, now in trainable(replayable) if now.shape == before[name].shape]
        for (name, now), length in zip(kept, lengths_between((before[name], now) for name, now in kept), strict=True):
            seen.updates[name] = length
            seen.dtypes[name] = str(now.dtype).removeprefix("torch.")
    seen.samples_after = samples_of(replayable)
    already = set(seen.bad_before)
    state = list(named_state(replayable))
    for (kind, name, tensor), size in zip(state, absmaxes(tensor for *_, tensor in state), strict=True):
        if not math.isfinite(size) and not ((kind, name) in masks and math.isinf(size)):
            seen.bad_after.append((kind, name))
            touch = tracer.sink(tensor) if tracer is not None and (kind, name) not in already else None
            if touch is not None:
                seen.sinks[kind, name] = touch
    return seen


@contextmanager
def _checked(replayable: Replayable, change: ReplayChange, altered: bool) -> Iterator[None]:
    """Index bounds are checked while a step runs that is not the one that ran: with other rows, or with a change.

    A change of values alone is checked on accelerators only: the CPU's kernels check what they are given.
    """
    rows = altered or change.alters_rows
    elsewhere = any(parameter.device.type != "cpu" for parameter in replayable.model.parameters())
    if not rows and (type(change) is ReplayChange or not change.alters_values or not elsewhere):
        yield
        return
    # Compiled code that meets a dispatch mode is given up by dynamo for good: it must not meet one.
    eager = torch.compiler.set_stance("force_eager") if dynamo_is_loaded() else nullcontext()
    with eager, no_unseen_kernels() if rows else nullcontext(), BoundsChecked(rows=rows):
        yield


def _see_terms(terms: Mapping[str, Tensor], seen: ReplayObservation, tracer: Tracer | None) -> None:
    for name, term in terms.items():
        value = float(term.detach())
        # Over micro-batches the worst is kept: a bad one must not hide behind a later good one.
        if name not in seen.terms or math.isfinite(seen.terms[name]):
            seen.terms[name] = value
        touch = tracer.sink(term) if tracer is not None and not math.isfinite(value) else None
        if touch is not None:
            seen.sinks.setdefault(("loss", name), touch)


def _see_gradients(replayable: Replayable, seen: ReplayObservation, tracer: Tracer | None) -> None:
    gradients: dict[str, Tensor] = {}
    for name, parameter in trainable(replayable):
        seen.gradients[name] = Gradient(name, False)  # until it is seen: this keeps the order of the parameters
        if parameter.grad is not None:
            gradients[name] = parameter.grad
    sizes, norms = absmaxes(gradients.values()), norms_of(gradients.values())
    for (name, gradient), size, norm in zip(gradients.items(), sizes, norms, strict=True):
        seen.gradients[name] = Gradient(name, True, norm if math.isfinite(size) else size, size)
        touch = tracer.sink(gradient) if tracer is not None and not math.isfinite(size) else None
        if touch is not None:
            seen.sinks["grad", name] = touch


@dataclass(slots=True)
class _Armed:
    armed: bool = False


@contextmanager
def _entering(replayable: Replayable, seen: ReplayObservation, tracer: Tracer | None) -> Iterator[_Armed]:
    """Look at the gradients in the moment an optimizer takes its step: after unscaling, clipping and the like."""
    armed = _Armed()

    def look(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not armed.armed:
            return
        seen.stepped = True
        names = parameter_names(replayable)
        if tracer is not None:
            tracer.paused = True
        entering = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in entering if p.grad is not None]
        for parameter, gradient, length in zip(entering, gradients, norms_of(gradients), strict=True):
            name = names.get(id(parameter), "?")
            seen.entering[name] = length
            touch = tracer.sink(gradient) if tracer is not None and not math.isfinite(length) else None
            if touch is not None:
                seen.sinks["entering", name] = touch
        if tracer is not None:
            tracer.paused = False

    handles = [optimizer.register_step_pre_hook(look) for optimizer in replayable.optimizers]
    try:
        yield armed
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _listening(tracer: Tracer | None, stage: str) -> Iterator[None]:
    if tracer is None:
        yield
        return
    tracer.stage = stage
    with tracer.tracing():
        yield


def name_leaves(replayable: Replayable, tracer: Tracer, batch: Any) -> None:
    """Tell the tracer what each tensor is that exists before the step."""
    for kind, name, tensor in named_state(replayable):
        tracer.trace.name(tensor, kind, name)
        if kind == "buffer" and has_values(tensor):
            _note_infinities(tracer, (kind, name), tensor)
    for kind, name, tensor in getattr(replayable, "state_read", tuple)():
        tracer.trace.name(tensor, kind, name)
    for name, parameter in replayable.model.named_parameters():
        if parameter.grad is not None:
            tracer.trace.name(parameter.grad, "grad", name)
    for key, value in walk_batch(batch):
        if isinstance(value, Tensor):
            tracer.trace.name(value, "batch", key)
            floats = has_values(value) and value.is_floating_point() and value.dtype.itemsize > 1
            if floats and bool(torch.isposinf(value).any()):
                tracer.trace.positive.add(("batch", key))
    for name, tensor in plain_tensors(replayable.model):
        tracer.trace.name(tensor, "buffer", name)


def _note_infinities(tracer: Tracer, leaf: tuple[str, str], tensor: Tensor) -> None:
    """Masks hold minus infinity. A buffer of nothing but infinities waits to be written for the first time, and one
    with plus infinities among finite numbers overflowed before the step."""
    tensor = tensor.float() if tensor.element_size() == 1 else tensor
    if bool(torch.isinf(tensor).all()):
        tracer.trace.unwritten.add(leaf)
    elif not tensor.is_complex() and bool(torch.isposinf(tensor).any()) and not bool(torch.isneginf(tensor).any()):
        tracer.trace.overflowed.add(leaf)


def hides_a_nan(replayable: Replayable) -> bool:
    """Whether this step makes a NaN in passing, or is given one, although its loss is finite."""
    tracer = Tracer(replayable.model, owners=replayable.facts.owners)
    with replayable.examining():
        seen = replay(replayable, tracer=tracer, until="forward")
    tracer.trace.finish()
    made = any(math.isnan(value) for value in tracer.trace.values)
    given = any(isinstance(v, Tensor) and math.isnan(absmax(v)) for b in replayable.batches for _, v in walk_batch(b))
    return seen.loss_finite and (made or given)
