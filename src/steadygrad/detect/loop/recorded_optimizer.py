"""One optimizer's part of the record: its gradients, rates and state from update to update."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...records import Finding, Reading
from .adapters import Adapter, find_adapters
from .loop_record import LoopRecord, UpdateSeen
from .measured.gradient_marks import GradientMarks, Marks, spread
from .measured.gradient_size import GradientSizes
from .measured.unmoved_weights import UnmovedWeights
from .model_calls import CallsSeen
from .optimizer_state import StateHistory, rate_of
from .program_frames import user_line
from .rules import judge
from .rules.rates import lr_zero
from .schedules import Schedules, of_an_idle_optimizer
from .whole_run.idle_groups import IdleGroups

_MAX_ADAPTERS = 4
_ADAPTERS_AT = range(2, 8)
"""Updates at which the gradients of adapters are read: before, a layer above them may be zero by its initialisation."""
_SHARE = 0.02
"""Less than this of a gradient is rounding, and not from an earlier update."""
_MAX_SHARES = 8
"""How often gradients that were kept are read, to be sure of it."""
_SCHEDULES_AT = (30, 190)
"""Updates at which the schedules of the process are looked at: by then one of an epoch may have been stepped too."""
_updates_of_all = [0]
"""Updates of every recorded optimizer: with several, one is stepped between two updates of another."""


@dataclass(slots=True)
class _Window:
    """What happened to the gradients since the last update."""

    passes: int = 0
    open: int = 0
    """Passes whose gradients are still there."""
    thrown_away: int = 0
    one_by_one: bool = True
    kept: bool = False
    at_begin: Marks = ()
    at_end: Marks = ()
    fed: frozenset[int] = frozenset()
    ran: set[str] = field(default_factory=set)
    """Layers with an adapter that were called with gradients."""
    old: Tensor | None = None
    old_share: float = 0.0
    no_gradient: bool = False
    adapters_at_zero: bool = False
    """The gradients of all adapters are there, and zero."""
    replaced: bool = False
    closure: bool = False


class RecordedOptimizer:
    """Marks the gradients at the events of a loop, and asks the rules after each update."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        probes, adapters = spread(parameters), _few(find_adapters(model))
        self._adapters = {len(probes) + place: adapter.name for place, adapter in enumerate(adapters)}
        self._outer = GradientMarks([adapter.outer for adapter in adapters])
        self.adapted_layers = [(adapter.name, weakref.ref(adapter.module)) for adapter in adapters]
        self._marks = GradientMarks([*probes, *(adapter.outer for adapter in adapters)])
        self.state = StateHistory(optimizer)
        self._schedules = Schedules(optimizer)
        self.groups = IdleGroups()
        self.sizes = GradientSizes(optimizer)
        self.unmoved = UnmovedWeights(optimizer)
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.record = LoopRecord()
        self.last_layer: int | None = None
        """The weight matrix nearest to the loss, by identity, where that is known."""
        self._window = _Window()
        self._at_update: Marks | None = None
        self._shares = 0
        self._turn = 0
        self._settled = 0
        self._loss: Tensor | None = None
        self._doubt = False
        """Whether the last gradients were zero: by being cleared, or by themselves? Then the next ones are read."""
        self._said: set[str] = set()
        self._news: list[Finding] = []

    def begin_window(self) -> None:
        """Nothing is known of the gradients from here on."""
        self._window = _Window()
        self._at_update = None

    def take(self) -> list[Finding]:
        """What was found and not taken yet."""
        news, self._news = self._news, []
        return news

    # -- gradients

    def backward_begins(self) -> None:
        window, marks = self._window, self._marks
        if not window.passes:
            # One that is cleared through `.data` keeps its version: once that is known, versions say nothing.
            before = self._at_update if self._shares < _MAX_SHARES else None
            window.kept = before is not None and marks.unchanged(before)
            if window.kept and (smallest := marks.smallest()) is not None:
                window.old = smallest.detach().clone()
        elif marks.cleared(window.at_end):
            window.one_by_one &= window.open == 1
            window.thrown_away, window.open, window.kept = window.thrown_away + window.open, 0, False
        elif not marks.unchanged(window.at_end):
            window.kept = False
        window.at_begin = marks.take()

    def layer_ran(self, name: str) -> None:
        """A layer with an adapter was called with gradients."""
        self._window.ran.add(name)

    def backward_ended(self) -> None:
        window, marks = self._window, self._marks
        if not window.at_begin:
            return  # an update was made inside of this backward pass
        fed = marks.added_to(window.at_begin)
        if not fed:
            return  # a gradient of something else: a penalty, an attack
        window.passes, window.open = window.passes + 1, window.open + 1
        window.fed |= fed
        window.at_end = marks.take(values=self._doubt)
        self.sizes.after_backward(self.record.count)

    def update_begins(self, optimizer: Optimizer, *, closure: bool) -> None:
        window, marks = self._window, self._marks
        self.state.before_update(optimizer)
        self.groups.before_update(optimizer)
        window.closure = closure
        if closure or not window.passes:
            return
        window.no_gradient = bool(window.open) and marks.cleared(window.at_end)
        if self._adapters and self.record.count in _ADAPTERS_AT:
            window.adapters_at_zero = self._outer.all_zero()
        window.replaced = marks.replaced(window.at_end)
        self.sizes.before_update(changed=not marks.unchanged(window.at_end))
        if window.kept and window.old is not None:
            window.old_share = _share(window.old, marks.smallest())
            window.kept = window.old_share > _SHARE
            self._shares = self._shares + 1 if window.old_share else _MAX_SHARES
        self.unmoved.before_update(optimizer, kept=window.kept)

    # -- the update

    def update_ended(self, optimizer: Optimizer, calls: CallsSeen, step: int, loss: Tensor | None = None) -> bool:
        """Enter the update that was made; `loss` is in host memory. Whether a rule found something."""
        self._loss = loss
        window, self._window = self._window, _Window()
        self._at_update = self._marks.take()
        in_turn = _updates_of_all[0] != self._turn
        _updates_of_all[0] += 1
        self._turn = _updates_of_all[0]
        self.unmoved.after_update(optimizer)
        self.record.unmoved = tuple(self._names.get(key, "a parameter") for key in self.unmoved.found)
        sizes = self.sizes.after_update()
        self.record.sizes += sizes
        self.record.state_lost, self.record.surely_lost = self.state.lost, self.state.surely
        self.record.narrowed = self.state.narrowed
        strange, distinct = calls.strange()
        evaluations = strange if calls.changes_values or calls.moves_statistics else 0
        update = UpdateSeen(
            step=step,
            closure=window.closure,
            in_turn=in_turn,
            backwards=window.passes,
            thrown_away=window.thrown_away,
            all_but_last=window.one_by_one and window.thrown_away == window.passes - 1 and window.passes > 1,
            one_batch=calls.input_gradient or calls.over_one_batch,
            kept=window.kept and window.old_share > _SHARE,
            old_share=window.old_share,
            no_gradient=window.no_gradient,
            replaced=window.replaced,
            rates=tuple(rate_of(group) for group in optimizer.param_groups),
            can_rise=self._can_rise(optimizer),
            training=calls.training,
            in_eval=calls.in_eval,
            empty_statistics=calls.empty_statistics,
            unmoved_statistics=calls.unmoved_statistics,
            dropout=calls.dropout,
            evaluations=evaluations if calls.calls else None,
            distinct_evaluations=distinct,
            moves_statistics=calls.moves_statistics,
            compares_itself=calls.compares_itself,
            idle_adapters=self._idle(window),
            pulls=calls.read_pulls() if window.passes > 1 else (),
        )
        self.record.add(update)
        self.groups.after_update(update.rates)
        if step in _SCHEDULES_AT and not self.record.idle_schedule:
            self.record.idle_schedule = of_an_idle_optimizer(optimizer)
        return (bool(sizes) or not _is_ordinary(update, self.record)) and self._judge()

    def ended(self) -> None:
        """No more updates come: what was loaded since the last one is judged, and what never took place."""
        self.record.never_raised = self.groups.at_the_end()
        if self.record.count and (self.record.not_loaded or self.record.idle_average or self.record.never_raised):
            self._judge()

    def _can_rise(self, optimizer: Optimizer) -> tuple[bool, ...]:
        given = [*self.state.given_zero, *([False] * len(optimizer.param_groups))]
        groups = zip(optimizer.param_groups, given, strict=False)
        return tuple(bool(group.get("initial_lr")) or (zero and not self._answers(group)) for group, zero in groups)

    def _answers(self, group: Mapping[str, Any]) -> bool:
        """Whether it holds the last layer: layers are unfrozen one by one from there, never it after the others."""
        return self.last_layer is not None and any(id(weight) == self.last_layer for weight in group["params"])

    def settled(self, reading: Reading) -> bool:
        """The loss and the norm of the oldest update that has none yet. Whether a rule found something."""
        place = self._settled - self.record.count
        if not -len(self.record.updates) <= place < 0:
            self._settled = self.record.count
            return False
        self._settled += 1
        self._doubt = reading.grad_norm == 0
        updates = self.record.updates
        loss: float | None = reading.loss
        if not math.isfinite(reading.loss):  # the entry point does not see it
            loss = float(self._loss) if self._loss is not None and place == -1 else None
        updates[place] = replace(updates[place], loss=loss, grad_norm=reading.grad_norm)
        unmoved = reading.grad_norm == 0 or self.record.same_loss()
        return unmoved and self._judge()

    def _idle(self, window: _Window) -> tuple[str, ...]:
        """The adapters of layers that ran, if none of all got a gradient other than zero and something else did."""
        if not window.fed or (window.fed & self._adapters.keys() and not window.adapters_at_zero):
            return ()
        return tuple(name for name in self._adapters.values() if name in window.ran)

    def _judge(self) -> bool:
        found = [finding for finding in judge(self.record) if finding.code not in self._said]
        if any(finding.code == lr_zero.RULE.code for finding in found) and self._schedules.come_back():
            found = [finding for finding in found if finding.code != lr_zero.RULE.code]
        if not found:
            return False
        file, line = user_line(2)
        for finding in found:
            self._said.add(finding.code)
            place = {"source": f"{file}:{line}"} if file else {}
            self._news.append(replace(finding, evidence={**finding.evidence, **place}))
        return True


def _is_ordinary(update: UpdateSeen, record: LoopRecord) -> bool:
    """Whether nothing of it can interest a rule. Most updates are."""
    return not (
        update.thrown_away
        or update.kept
        or update.no_gradient
        or not all(update.rates)
        or update.in_eval
        or update.unmoved_statistics
        or update.evaluations
        or update.idle_adapters
        or record.state_lost
        or record.narrowed
        or record.unmoved
        or record.idle_schedule
        or record.repeated
        or record.empty_clips
        or record.few_drawn
        or record.by_class
        or record.rewritten
        or record.aliased
        or record.same_memory
        or record.constant
        or record.not_loaded
        or record.idle_average
        or record.replicas
        or record.same_draws
        or record.same_noise
        or record.same_epochs
        or record.same_rows
        or len(update.pulls) > 1
        or max(update.rates, default=0.0) < 1e-5 * record.peak_rate
    )


def _few(adapters: list[Adapter]) -> list[Adapter]:
    return adapters[:: max(1, len(adapters) // _MAX_ADAPTERS)][:_MAX_ADAPTERS]


def _share(old: Tensor, now: Tensor | None) -> float:
    """How much of a gradient was there before this step's backward. Reads the device."""
    if now is None or now.shape != old.shape:
        return 0.0
    before, new = _norm(old), _norm(now.detach() - old)
    return before / (before + new) if before + new > 0 else 0.0


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor if tensor.is_complex() else tensor.float()))
