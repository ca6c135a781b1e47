"""Whether an update made something bad out of finite gradients: before, during and after it.

An update goes wrong by itself where something is new to it: state that was loaded or written from outside, parameters
that get a gradient for the first time, a learning rate that jumped or is no number, weights in half precision, an
optimizer that torch does not bring along. Then everything is copied to host memory first, the update is made, looked
at, and undone if it made a weight bad. All other updates cost a few comparisons and, on a CPU, a look at a share of the
weights, so that all of them are looked at every `COVERAGE` updates. Nothing here syncs with a device in those.
"""

from __future__ import annotations

import math
import operator
import sys
import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.quiet_hook import registered
from ...policy.decide import RATE
from ...records import Reading
from ..distributed.consensus import SingleRank
from ..state.kept_bytes import DEVICE, allowed_bytes
from ..state.state_shadow import StateShadow
from ..state.training_state import TrainingState, Tree, bad_state, can_be_scanned, copy_tree, largest_magnitudes

MOST_TENSORS = 2048
"""Past so many tensors of state, looking at the version of each takes too long to be done in every step."""
FEW_TENSORS, MARK_EVERY = 32, 8
"""With more than so many tensors of state their versions are looked at after every eighth update only."""
EVERY, COVERAGE = 4, 16
"""On a CPU a share of the weights is looked at every fourth update, and so every weight once in sixteen."""
OPTIONS = ("lr", "weight_decay", "momentum", "eps", "betas")
"""Options of a parameter group that must be numbers."""
JUMP = 3.0
"""A learning rate so many times the last one is new to the update."""
FIRST, SMALL, COPIES = 2, 16 << 20, 4
"""Updates of an optimizer that torch does not bring along, or of half-precision weights, that are copied first; all of
them where the weights take no more bytes than this, and on a device so many times that may be kept there."""

_version = operator.attrgetter("_version")


class UpdateCheck:
    """Asked before an update (`before`) and after it (`after`). One per training."""

    def __init__(
        self, optimizers: Sequence[Optimizer], state: TrainingState, consensus: SingleRank | None = None, *,
        on_device: bool = False,
    ) -> None:  # fmt: skip
        """`on_device`: what updates leave in the memory of a device is kept and compared too."""
        self._references = [weakref.ref(optimizer) for optimizer in optimizers]
        self._state, self._consensus = state, consensus or SingleRank()
        tensors = state.parameters()
        self._on_host = all(t.device.type == "cpu" for t in tensors)
        self._half = any(t.dtype is torch.float16 for t in tensors)
        self._foreign = any(not type(o).__module__.startswith("torch.optim") for o in optimizers)
        self._bytes = sum(t.numel() * t.element_size() for t in tensors)
        self._versions = self._on_host
        self._loaded = self._many = False
        self._with_gradient: frozenset[int] | None = None
        self._mark: tuple[list[Tensor], int] | None = None
        """The tensors of state that the last update left, and how often they were written, where that is compared."""
        self._listed: tuple[int, list[Tensor]] = (0, [])
        """The tensors of state, and the identities that they were listed by."""
        self._looked = self._replaces = False
        """Whether they were listed just before the update under way; whether an update was seen to replace some."""
        self._rates: list[float] = []
        self._options: list[Any] = []
        """The options of all groups when they were last looked at, and found to be numbers."""
        self._rated: list[Any] = []
        """The options that the learning rates were read from."""
        self._held: list[tuple[dict[str, Any], float]] = []
        self._updates = self._careful_left = 0
        self._bad_before: dict[str, Any] = {}
        self._begun = state.sharded  # of shards no rank reads alone
        self._bad_at_start = set[str]()
        self.shadow: StateShadow | None = StateShadow(state) if self._on_host or on_device else None
        """What the last update left; None where it is not kept."""
        self.failed: Callable[[Exception], None] = lambda fault: None
        """Called with a fault of that copy."""
        self._hooks = [registered(o.register_load_state_dict_post_hook, self._note_load) for o in optimizers]

    def _optimizers(self) -> list[Optimizer]:
        """Those that are still there: whoever trains frees them by letting go."""
        return [found for reference in self._references if (found := reference()) is not None]

    def release(self) -> None:
        """Leave no hook on the optimizers, and keep no copy of what they made."""
        while self._hooks:
            self._hooks.pop().remove()
        self.shadow, self._listed, self._mark = None, (0, []), None

    def _note_load(self, _optimizer: Optimizer) -> None:
        self._loaded, self._listed, self._mark = True, (0, []), None
        if self.shadow is not None:
            self.shadow.renew()

    # -- before

    @property
    def careful(self) -> bool:
        """Whether every update is copied first and looked at, as after a rollback from poisoned weights."""
        return self._careful_left > 0

    def be_careful(self, steps: int) -> None:
        self._careful_left = steps

    @property
    def wants_host(self) -> bool:
        """Whether the host must be there when the next update is made, also where it could be settled late. Reads the
        device before the first one: infinities that are there on purpose are accepted once an update was made."""
        if not self._begun:
            self._look_at_start()
        new = self._loaded or (self._bad_at_start and not self._updates)
        return bool(new) or not self._are_numbers(self._options_now())

    @property
    def copies_each(self) -> bool:
        """Whether every update may go wrong by itself, and its state is so small that it is copied before each."""
        if not (self._half or self._foreign) or self._bytes > SMALL:
            return False
        return self._on_host or COPIES * self._bytes <= allowed_bytes(DEVICE)

    def forget(self) -> None:
        """The trained parameters have changed: the next update is new."""
        if self.shadow is not None:
            self.shadow.forget()
        self._with_gradient = None

    def before(
        self, with_gradient: Sequence[int], *, may_copy: bool, hold_rate: bool = False, large: bool = False
    ) -> Tree | None:
        """A copy of everything, in host memory, where the coming update may have to be undone; else None.

        `with_gradient` are the places of the parameters that have a gradient. What is bad by then is remembered.
        With `hold_rate` a learning rate that is no number is replaced for this update by its last finite value; with
        `large` gradients moments may overflow, and that is this update's doing.
        """
        self._bad_before, self._looked, at_start = {}, False, None if self._begun else self._look_at_start()
        if self._held:
            self._give_rates_back()  # where the update before raised
        if hold_rate:
            self._hold_rates()
        if self._careful_left:
            self._careful_left -= 1
        elif may_copy and (large or self._is_new(with_gradient)):
            self._bad_before = at_start or bad_state(self._state)
            if large and not (self._bad_before["bad_parameters"] or self._bad_before["bad_state"]):
                self._bad_before = {}
        else:
            return None
        return self._copy()

    def _copy(self) -> Tree | None:
        """In host memory, or beside the weights where that is done before each update; None if memory is short."""
        beside = not self._on_host and self.copies_each
        try:
            copied: Tree = copy_tree(self._state.live(), lambda t: t.clone() if beside else t.to("cpu", copy=True))
            return copied
        except torch.OutOfMemoryError:
            self._bytes = sys.maxsize
            return None

    def _look_at_start(self) -> dict[str, Any] | None:
        """What is bad before the first update of all; None before the others."""
        if self._begun:
            return None
        bad, self._begun = bad_state(self._state), True
        self._bad_at_start = set(bad["bad_parameters"])
        return bad

    def _is_new(self, with_gradient: Sequence[int]) -> bool:
        if self._with_gradient is None or self._loaded or not self._with_gradient.issuperset(with_gradient):
            return True
        options = self._options_now()
        if not self._are_numbers(options):
            return True
        if (self._half or self._foreign) and (self._updates < FIRST or self.copies_each):
            return True
        if not _same(options, self._rated) and any(
            now > JUMP * before for now, before in zip(_rates(options), self._rates, strict=False) if before > 0
        ):
            return True
        if self._mark is None:
            return False
        self._list_state()
        self._looked = True
        tensors, written = self._mark
        return tensors is not self._listed[1] or written != sum(map(_version, tensors))

    # -- after

    def after(self, with_gradient: Sequence[int], undo: Tree | None) -> dict[str, Any] | None:
        """What the update made non-finite, as fields of a Reading; None if nothing, or nothing that was looked at.

        Where there is a copy from before, the caller restores it: then the update is undone to the bit.
        """
        if self._held:
            self._give_rates_back()
        self._note(with_gradient, new=undo is not None)
        if undo is None:
            return self._sampled()
        bad = self._consensus.looked(bad_state(self._state), Reading(step=-1, loss=0.0))
        before = self._bad_before
        if not set(bad["bad_parameters"]) - self._bad_at_start - set(before.get("bad_parameters", ())) and (
            before or not bad["bad_state"]
        ):
            return None  # what is bad was so before, or is no weight: it is reported elsewhere
        if not any(bad.values()):
            return None
        if before and before["bad_state"]:
            return before  # the update only passed on what had been put into its moments
        return {**bad, "undone": True, "bad_options": self._bad_options()}

    def _note(self, with_gradient: Sequence[int], *, new: bool) -> None:
        self._updates += 1
        self._loaded = False
        if self._updates == 1 and self._bad_at_start:
            self._bad_at_start -= self._state.accept_infinities(self._bad_at_start)
        if self._with_gradient is None or not self._with_gradient.issuperset(with_gradient):
            self._with_gradient = (self._with_gradient or frozenset()).union(with_gradient)
        if not self._versions or (self._many and self._updates % MARK_EVERY):
            self._mark = None
        else:
            self._mark_state(new=new)
        options = self._options_now()
        if not _same(options, self._rated):
            now, self._rated = _rates(options), options
            kept = self._rates if len(self._rates) == len(now) else now
            self._rates = [rate if math.isfinite(rate) else last for rate, last in zip(now, kept, strict=True)]
        if self.shadow is not None:
            try:
                self.shadow.keep()
            except Exception as fault:  # a tensor that cannot be copied or counted
                self.shadow = None
                self.failed(fault)

    def _sampled(self) -> dict[str, Any] | None:
        """A look at a share of the weights; at all of them in half precision. One read of host memory, or none."""
        if not self._on_host or self._consensus.size > 1:
            return None
        if not self._half and self._updates % EVERY:
            return None
        tensors = self._state.parameters()
        share = len(tensors) if self._half else -(-len(tensors) * EVERY // COVERAGE)
        first = (self._updates // EVERY * share) % max(1, len(tensors))
        chosen = (tensors[(first + place) % len(tensors)] for place in range(share))
        looked = [t for t in chosen if can_be_scanned(t)]
        if not looked or all(map(math.isfinite, largest_magnitudes(looked).tolist())):
            return None
        bad = bad_state(self._state)
        return bad if set(bad["bad_parameters"]) - self._bad_at_start else None

    # -- learning rates that are no numbers

    def _hold_rates(self) -> None:
        groups = [group for optimizer in self._optimizers() for group in optimizer.param_groups]
        for group, last in zip(groups, self._rates, strict=False):
            rate = group.get("lr")
            if isinstance(rate, float) and not math.isfinite(rate) and math.isfinite(last):
                self._held.append((group, rate))
                group["lr"] = last

    def _give_rates_back(self) -> None:
        while self._held:
            group, rate = self._held.pop()
            group["lr"] = rate

    def _bad_options(self) -> tuple[str, ...]:
        """Options that are no finite numbers, each with its value."""
        options = self._options_now()
        named = zip(OPTIONS * len(options), options, strict=False)
        bad = {key: value for key, value in named if isinstance(value, float) and not math.isfinite(value)}
        return tuple(f"{RATE if key == 'lr' else key} is {value}" for key, value in bad.items())

    # -- what can be known without reading a tensor

    def _are_numbers(self, options: list[Any]) -> bool:
        """Whether all of them are finite. A tensor on a device is not read. Those that were not set anew are known."""
        if _same(options, self._options):
            return True
        known = self._options if len(options) == len(self._options) else [None] * len(options)
        for value, before in zip(options, known, strict=True):
            if value is not before:
                items = value if isinstance(value, tuple) else (value,)
                if not all(math.isfinite(item) for item in items if isinstance(item, float)):
                    return False
        self._options = options
        return True

    def _options_now(self) -> list[Any]:
        """Those options of all groups that must be numbers, group by group."""
        found: list[Any] = []
        for reference in self._references:
            if (optimizer := reference()) is not None:
                for group in optimizer.param_groups:
                    found += map(group.get, OPTIONS)
        return found

    def _list_state(self) -> None:
        """Look which tensors of state there are."""
        states: list[Any] = []
        for reference in self._references:
            if (optimizer := reference()) is not None:
                states += optimizer.state.values()
        try:
            values = list(chain.from_iterable(map(dict.values, states)))
        except TypeError:  # some are no mappings
            values = [value for state in states if isinstance(state, dict) for value in state.values()]
        ids = sum(map(id, values))
        if ids != self._listed[0]:
            tensors = [value for value in values if isinstance(value, Tensor)]
            self._listed = (ids, self._listed[1] if _same(tensors, self._listed[1]) else tensors)

    def _mark_state(self, *, new: bool) -> None:
        """Mark the state that an update has left. Most updates write to the tensors that were there before."""
        if new or self._replaces or not self._looked:
            before = self._listed[1]
            self._list_state()
            self._replaces |= self._looked and before is not self._listed[1]
        tensors = self._listed[1]
        if self._mark is None or self._mark[0] is not tensors:
            if len(tensors) > MOST_TENSORS or any(map(Tensor.is_inference, tensors)):
                self._versions, self._mark = False, None
                return
            self._many = len(tensors) > FEW_TENSORS
        self._mark = tensors, sum(map(_version, tensors))


def _same(some: list[Any], others: list[Any]) -> bool:
    """Whether these are the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _rates(options: list[Any]) -> list[float]:
    """The learning rates among the options of all groups; 0 for one that is no plain number."""
    return [rate if isinstance(rate, float | int) else 0.0 for rate in options[:: len(OPTIONS)]]
