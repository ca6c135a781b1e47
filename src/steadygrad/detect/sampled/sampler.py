"""Vitals: looks for silent trouble at a few steps, cheaply.

    vitals = Vitals(model, optimizers, policy)
    for found in vitals.inspect_setup(): ...
    # in the loop, at a step that is due:
    vitals.before_forward()      # optional: activation ranges
    vitals.before_update()       # gradients are in place, unscaled
    vitals.after_update()        # the optimizer has stepped
    vitals.findings(step)        # once the step is settled: the one host read

At a step that is not due none of it is called, and nothing is attached to the model. A sampled step may be settled
after the next one has begun: what it measured waits, in order, for its `findings`.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ...policy import Policy
from ...records import Finding
from ..tensors.foreign_objects import isinstance
from ..tensors.living_objects import living
from ..tensors.unregistered_tensors import stray_parameters
from .activation_probe import ActivationProbe, SeenActivation
from .device_readback import Readback
from .judge_samples import judge_samplings
from .parameter_measurement import Measured, Measurement
from .rules import parameter_not_in_optimizer
from .sample_helpers import StepObservation, TensorNumbers

_EARLY = frozenset({0, 1, 2, 5, 10})
_KEPT = 8


@dataclass(slots=True)
class _Watched:
    """A parameter and where it is stepped; `lr` is the one the sampled update used."""

    name: str
    tensor: Tensor
    optimizer: Optimizer | None
    group: int
    lr: float = 0.0
    in_model: bool = True


@dataclass(slots=True)
class _Open:
    """A sampling on its way: the parameters as they were at its step, and the numbers that are coming."""

    watched: list[_Watched]
    with_gradient: frozenset[int]
    measurement: Measurement
    seen: SeenActivation | None = None
    readback: Readback | None = None


class StepSampler:
    """Samples a run at steps 0, 1, 2, 5, 10 and then every `policy.vitals_every`."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], policy: Policy) -> None:
        # Whoever trains holds them: a training that has ended is freed without us.
        self._model_ref, self._optimizer_refs = weakref.ref(model), [weakref.ref(each) for each in optimizers]
        self._policy = policy
        self._activations = ActivationProbe(model)
        self._samplings: deque[StepObservation] = deque(maxlen=_KEPT)
        self._starts_at_zero: set[int] = set()
        self._had_gradient: set[int] = set()
        self._strays: list[tuple[str, Tensor]] | None = None
        self._open: _Open | None = None
        self._waiting: deque[_Open] = deque()
        self._said: set[tuple[str, str]] = set()

    def model(self) -> nn.Module | None:
        """The model, as long as it is there."""
        return self._model_ref()

    @property
    def _model(self) -> nn.Module:
        model = self._model_ref()
        assert model is not None, "the model of this training is gone"
        return model

    @property
    def _optimizers(self) -> list[Optimizer]:
        return [optimizer for reference in self._optimizer_refs if (optimizer := reference()) is not None]

    def due(self, step: int) -> bool:
        """Whether this step is to be sampled. Host only."""
        return step in _EARLY or step % self._policy.vitals_every == 0

    def next_due(self, step: int) -> int:
        """The first step after this one that is to be sampled."""
        every = self._policy.vitals_every
        return min(step + every - step % every, *(early for early in _EARLY if early > step), step + every)

    def inspect_setup(self) -> tuple[Finding, ...]:
        """What can be said before the first step. Host only: looks at dtypes and membership, not at values."""
        tensors = tuple(self._describe(entry, None) for entry in self._watch())
        return self._new(judge_samplings([StepObservation(step=0, tensors=tensors, measured=False)], self._policy))

    def before_forward(self) -> None:
        """Attach the hooks that measure activations; `after_update` takes them off. Does not synchronise."""
        self._activations.attach()

    def before_update(self) -> None:
        """Note the gradients and a slice of every weight. Allocates the slices; does not synchronise."""
        self._activations.detach()
        # Parameter groups and frozen parts may change while a run goes on, so they are looked up anew.
        watched = self._watch()
        tensors = [entry.tensor for entry in watched]
        with_gradient = frozenset(index for index, tensor in enumerate(tensors) if tensor.grad is not None)
        measurement = Measurement.begin(tensors, sample=self._policy.vitals_sample)
        self._open = _Open(watched, with_gradient, measurement)

    def after_update(self) -> None:
        """Compare the slices with what the update made of them, and send for the numbers. Does not synchronise."""
        self._activations.detach()
        if (sampling := self._open) is None:
            return
        sampling.measurement.end()
        sampling.seen = self._activations.take()
        outputs = sampling.seen.absmax.values() if sampling.seen is not None else ()
        sampling.readback = Readback([*sampling.measurement.tables(), *outputs])
        self._waiting.append(sampling)
        self._open = None

    def discard(self) -> None:
        """Forget every sampling that is open or waiting, and take the hooks off."""
        self._activations.detach()
        self._activations.take()
        self._open = None
        self._waiting.clear()

    def findings(
        self, step: int, *, applied: bool = True, loss: float | None = None, loss_scale: float | None = None
    ) -> tuple[Finding, ...]:
        """What the oldest waiting sampling, of this step, and those before it show; () if its update was refused.

        Waits for the sampling's one host read. The same finding about the same tensor is said once in a run.
        """
        if not self._waiting:
            return ()
        waiting = self._waiting.popleft()
        if not applied or waiting.readback is None:
            return ()
        values, num_tables = waiting.readback.values(), len(waiting.measurement.groups)
        measured = waiting.measurement.rows(values[:num_tables])
        if not all(math.isfinite(numbers.grad_absmax) for numbers in measured.values()):
            return ()  # a bad step: other detectors speak of it, and it teaches nothing of the good ones
        measured = {index: numbers for index, numbers in measured.items() if _is_finite(numbers)}
        self._remember(waiting, measured)
        seen = waiting.seen
        ran = None if seen is None else frozenset(seen.ran)
        sampling = StepObservation(
            step=step,
            tensors=tuple(self._describe(entry, measured.get(i), ran) for i, entry in enumerate(waiting.watched)),
            activations=() if seen is None else seen.vitals(values[num_tables:]),
            loss_scale=loss_scale,
            terms={} if loss is None else {"loss": loss},
        )
        self._samplings.append(sampling)
        return self._new(judge_samplings(tuple(self._samplings), self._policy))

    def _remember(self, waiting: _Open, measured: dict[int, Measured]) -> None:
        for index, numbers in measured.items():
            tensor = id(waiting.watched[index].tensor)
            if tensor not in self._had_gradient and numbers.weight_norm == 0.0:
                self._starts_at_zero.add(tensor)
        self._had_gradient.update(id(waiting.watched[index].tensor) for index in waiting.with_gradient)

    def _new(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        new = tuple(found for found in findings if (found.code, found.subject) not in self._said)
        if any(found.code == parameter_not_in_optimizer.RULE.code for found in new):
            new = tuple(found for found in new if not self._is_held_by_another(found))
        self._said.update((found.code, found.subject) for found in new)
        return new

    def _is_held_by_another(self, found: Finding) -> bool:
        """Whether it says that parameters are in no optimizer, and one that we were not given has them."""
        if found.code != parameter_not_in_optimizer.RULE.code:
            return False
        named = dict(self._model.named_parameters())
        held = {id(p) for optimizer in living(Optimizer) for group in optimizer.param_groups for p in group["params"]}
        return all(name in named and id(named[name]) in held for name in found.evidence["names"])

    def _watch(self) -> list[_Watched]:
        homes = {
            id(parameter): (optimizer, index)
            for optimizer in self._optimizers
            for index, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }
        watched, seen = [], set()
        for name, parameter in self._model.named_parameters():
            optimizer, group = homes.get(id(parameter), (None, 0))
            lr = _lr(optimizer.param_groups[group]) if optimizer is not None else 0.0
            watched.append(_Watched(name, parameter, optimizer, group, lr))
            seen.add(id(parameter))
        for number, optimizer in enumerate(self._optimizers):
            for index, options in enumerate(optimizer.param_groups):
                for place, parameter in enumerate(options["params"]):
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        name = f"optimizer {number}, group {index}, parameter {place}"
                        watched.append(_Watched(name, parameter, optimizer, index, _lr(options), in_model=False))
        # Layers in a plain list: neither model nor optimizer knows them, and backward does.
        if self._strays is None:
            self._strays = list(stray_parameters(self._model))
        for name, stray in self._strays:
            if id(stray) not in seen and stray.grad is not None:
                watched.append(_Watched(name, stray, None, 0, in_model=False))
        return [entry for entry in watched if not is_lazy(entry.tensor)]  # it has no shape yet

    def _describe(self, entry: _Watched, numbers: Measured | None, ran: frozenset[str] | None = None) -> TensorNumbers:
        options = entry.optimizer.param_groups[entry.group] if entry.optimizer is not None else {}
        state = entry.optimizer.state.get(entry.tensor, {}) if entry.optimizer is not None else {}
        moments = {
            key: value
            for key, value in state.items()
            if isinstance(value, Tensor) and value.is_floating_point() and value.shape == entry.tensor.shape
        }
        eps = options.get("eps")
        return TensorNumbers(
            name=entry.name,
            dtype=_word(entry.tensor.dtype),
            ndim=entry.tensor.dim(),
            numel=entry.tensor.numel(),
            trainable=entry.tensor.requires_grad,
            in_optimizer=entry.optimizer is not None,
            has_master=any("master" in str(key) for key in moments),
            starts_at_zero=id(entry.tensor) in self._starts_at_zero,
            lr=entry.lr,
            eps=eps if isinstance(eps, float) else None,
            state_dtypes=tuple(sorted({_word(value.dtype) for value in moments.values()})),
            has_gradient=id(entry.tensor) in self._had_gradient,
            module_ran=None if ran is None else entry.in_model and entry.name.rpartition(".")[0] in ran,
            grad_absmax=numbers.grad_absmax if numbers else 0.0,
            weight_norm=numbers.weight_norm if numbers else 0.0,
            update_norm=numbers.update_norm if numbers else 0.0,
            num_sampled=numbers.num_sampled if numbers else 0,
            num_live=numbers.num_live if numbers else 0,
            num_moved=numbers.num_moved if numbers else 0,
        )


def _is_finite(numbers: Measured) -> bool:
    return math.isfinite(numbers.weight_norm) and math.isfinite(numbers.update_norm)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _lr(options: dict[str, Any]) -> float:
    """A learning rate kept in a tensor on a device is taken for 1.0 rather than waited for, and so is one that the
    optimizer finds itself: it is only asked whether there is one."""
    lr = options.get("lr", 0.0)
    if isinstance(lr, Tensor):
        return float(lr) if lr.device.type == "cpu" else 1.0
    return 1.0 if lr is None else float(lr)
