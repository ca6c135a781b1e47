"""Whether parts of a model are replicas that are trained on parts of each batch and drift apart.

Sibling modules with the same weights are looked for before the first update, in host memory. Where there are some,
their calls are listened to for as long as they are used like replicas and differ: they are given different rows of one
tensor, and what they return is put together again, or goes into losses with a backward pass each.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ...tensors.nested_tensors import tensors_in
from ...tensors.quiet_hook import Handle, QuietHook, registered
from ...tensors.readable_tensors import describable
from ...tensors.torch_private import current_graph_task

UPDATES = 20
"""So many updates in a row they must differ: weights that are averaged now and then are equal again before."""
_MAX_NUMEL, _MAX_GROUPS, _NEAR = 1 << 22, 8, 64
_APART = 0.01
"""The difference of two replicas, as a part of what one of them has moved."""


@dataclass(slots=True, eq=False)
class _Call:
    """What one replica was given: the rows of a tensor, by its memory, and the node of what it returned."""

    memory: int
    rows: range
    kind: tuple[Any, ...]
    made_by: Any
    task: int = -1


@dataclass(slots=True, eq=False)
class _Group:
    """Siblings that began with the same weights."""

    names: list[str]
    modules: list[weakref.ref[nn.Module]]
    weight: str
    first: Tensor
    calls: dict[int, list[_Call]] = field(default_factory=dict)
    together: bool = False
    """What they returned was put together again, in their order."""

    def are_replicas(self) -> bool:
        """Whether the calls since the last update were those of replicas."""
        if len(self.calls) != len(self.modules) or any(len(each) != 1 for each in self.calls.values()):
            return False
        calls = [self.calls[place][0] for place in range(len(self.modules))]
        rows = sorted((call.rows for call in calls), key=lambda each: each.start)
        apart = all(one.stop <= other.start for one, other in pairwise(rows))
        tasks = {call.task for call in calls}
        alone = len(tasks) == len(calls) and -1 not in tasks
        return apart and len({(call.memory, call.kind) for call in calls}) == 1 and (self.together or alone)

    def differ(self) -> bool:
        """Whether their weights are others by now. Reads two numbers."""
        found = [module.get_parameter(self.weight) for each in self.modules if (module := each()) is not None]
        if len(found) != len(self.modules):
            return False
        moved = float((found[0] - self.first).norm())
        return moved > 0 and all(float((found[0] - other).norm()) > _APART * moved for other in found[1:])


class Replicas:
    """The replicas of one model. Keeps none of them alive."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._undo: list[Handle] = []
        self._updates = 0
        self.done = False
        self.found = ""
        """How they drift, as a sentence; or nothing."""

    def before_update(self, model: nn.Module, failed: Callable[[Exception], None]) -> None:
        """The first time it looks for them, and then at what they were given since the last update."""
        number, self._updates = self._updates, self._updates + 1
        with torch.no_grad():
            if not number:
                self._groups = list(_siblings(model))
                self._listen(failed)
            else:
                self._groups = [each for each in self._groups if each.are_replicas() and each.differ()]
                self._judge(number)
        for group in self._groups:
            group.calls, group.together = {}, False
        if not self._groups:
            self.close()

    def close(self) -> None:
        """Leave no hook."""
        undo, self._undo, self._groups, self.done = self._undo, [], [], True
        for handle in undo:
            handle.remove()

    def _judge(self, updates: int) -> None:
        if self._groups and updates >= UPDATES:
            names = " and ".join(self._groups[0].names[:2])
            self.found = (
                f"{names} began with the same weights and are given different rows of each batch, and after {updates} "
                "updates their weights are different: they do not exchange gradients"
            )
            self.close()

    def _listen(self, failed: Callable[[Exception], None]) -> None:
        for group in self._groups:
            for place, reference in enumerate(group.modules):
                if (module := reference()) is not None:
                    hook = QuietHook(_heard(group, place), failed)
                    self._undo.append(registered(module.register_forward_hook, hook))

    def returned(self, output: Tensor) -> None:
        """What the model returned: is it what replicas returned, put together?"""
        for group in self._groups:
            if len(group.calls) == len(group.modules):
                made_by = [group.calls[place][-1].made_by for place in range(len(group.modules))]
                group.together = _puts_together(output.grad_fn, made_by)


def _heard(group: _Group, place: int) -> Callable[..., None]:
    def heard(_module: nn.Module, args: Any, output: Any) -> None:
        given = next((tensor for tensor in tensors_in(args) if tensor.dim()), None)
        made = next((tensor for tensor in tensors_in(output) if tensor.grad_fn is not None), None)
        if given is None or made is None or not describable(given) or not torch.is_grad_enabled():
            return
        step = max(1, given.stride(0))
        begin = given.storage_offset() // step
        kind = given.shape[1:], given.dtype, given.stride()
        call = _Call(given.untyped_storage().data_ptr(), range(begin, begin + len(given)), kind, made.grad_fn)
        group.calls.setdefault(place, []).append(call)

        def came_back(_gradient: Tensor) -> None:
            call.task = current_graph_task()

        made.register_hook(came_back)  # type: ignore[no-untyped-call]

    return heard


def _siblings(model: nn.Module) -> Iterator[_Group]:
    """Modules of one parent and one class whose weights are all trained, equal to the bit, and not shared."""
    inside: set[int] = set()
    count = 0
    for name, parent in model.named_modules():
        if id(parent) in inside:
            continue
        kinds: dict[Any, list[tuple[str, nn.Module]]] = {}
        for child, module in parent.named_children():
            if not all(map(describable, module.parameters())):
                continue  # some have no values yet
            shapes = tuple((key, each.shape) for key, each in module.named_parameters())
            if any(len(shape) > 1 for _, shape in shapes):
                kinds.setdefault((type(module), shapes), []).append((f"{name}.{child}" if name else child, module))
        for (_, shapes), found in kinds.items():
            if len(found) > 1 and count < _MAX_GROUPS and _are_equal([module for _, module in found]):
                weight = next(key for key, shape in shapes if len(shape) > 1)
                first = found[0][1].get_parameter(weight).detach().clone()
                modules = [weakref.ref(module) for _, module in found]
                yield _Group([each for each, _ in found], modules, weight, first)
                count += 1
                inside |= {id(part) for _, module in found for part in module.modules()}


def _are_equal(modules: list[nn.Module]) -> bool:
    first, *others = ([*module.parameters()] for module in modules)
    every = [first, *others]
    if not all(each.requires_grad and describable(each) for own in every for each in own):
        return False
    if sum(each.numel() for own in every for each in own) > _MAX_NUMEL:
        return False
    if len({each.data_ptr() for own in every for each in own}) < sum(map(len, every)):
        return False
    varied = any(len(torch.unique(each[0])) > 1 for each in first if each.dim() > 1)
    return varied and all(
        torch.equal(one, two) for own in others for one, two in zip(first, own, strict=True) if one.device == two.device
    )


def _puts_together(node: Any, made_by: list[Any]) -> bool:
    """Whether near this node there is one that joins these, in this order."""
    waiting, seen = deque([node]), 0
    while waiting and seen < _NEAR:
        each, seen = waiting.popleft(), seen + 1
        if each is None:
            continue
        inputs = [edge for edge, _ in each.next_functions]
        joins = each.name().startswith("Cat") and len(inputs) == len(made_by)
        if joins and all(one is other for one, other in zip(inputs, made_by, strict=True)):
            return True
        waiting.extend(inputs)
    return False
