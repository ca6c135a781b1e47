"""A refused step of a loop that was cut out of its source, in the form that the diagnosis replays.

Stronger than replaying the model's calls alone: the loss is computed again by the loop's own lines, so an origin
outside of the model is found and remedies can be tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS

from ....detect.tensors.foreign_objects import getattr, hasattr, is_tensor, isinstance
from ....detect.tensors.nested_tensors import tensors_in
from ....detect.tensors.torch_private import register_pytree_node
from ....diagnosis.distributed.unsharded import UsesCollectives
from ....diagnosis.isolation.resource_limits import limits
from ....diagnosis.locate.crash_origin import near_a_nan
from ....diagnosis.replay.guard_step import narrow
from ....diagnosis.replay.replayable import StepFacts
from ....diagnosis.replay.rewound_generator import drawn_between, state_before
from ....engine.recovery.reruns.reached_state import reached_objects_kept
from ....engine.recovery.reruns.rehearsal import Rehearsal
from ....engine.recovery.reruns.side_effects import HasEffect, supervised
from ....engine.recovery.reruns.user_state import LargeTables, UserState
from ....engine.state.forward_state import Entry, ForwardState
from ....engine.state.training_state import TrainingState
from ...loops.after_backward import LinesAfter
from ...optimizer.optimizer_loop import OptimizerLoop
from ..hooks.call_log import gradients_kept, inner
from .loop_lines import LoopPass
from .model_call_step import ModelCallStep

MADE_BEFORE = "the gradient flows through calls that were made before these lines"
_MAX_NODES = 200_000


class LoopStep(ModelCallStep):
    """Satisfies `diagnosis.replay.replayable.Replayable`: its batches are the names that the loop's lines read."""

    def __init__(
        self,
        loop: OptimizerLoop,
        state: TrainingState,
        forward: ForwardState,
        entry: Entry,
        modules: Sequence[nn.Module],
        loop_passes: Sequence[LoopPass],
        before: Sequence[Sequence[LoopPass]],
        facts: StepFacts,
        loss_scale: float,
    ) -> None:
        super().__init__(loop, state, forward, entry, (), facts, 0.0, together(modules, loop_passes))
        self.batches = [LoopPassBatch(loop_pass, loop_pass.batch) for loop_pass in loop_passes]
        self.loop_passes = loop_passes
        self._before = [group for group in before if not any(loop_pass.overwritten for loop_pass in group)]
        self._loss_scale = loss_scale
        self.forward_only = False
        """Whether the loss hangs on a graph that the program made before these lines: then only the lines' own forward
        is run again, since a backward would go through, and free, what is the program's."""
        self._after: LinesAfter | None = None
        self._others: list[Tensor] = []
        """Parameters of other models that the lines read: a copy in half precision, say, whose gradients are used."""
        self.feels_update = True
        """Whether the lines read what the update changes. Not where a copy is called that the program writes later."""
        self._grad_enabled = torch.is_grad_enabled()
        self._noted: UserState | None = None
        self._tables = LargeTables()
        self.raised: Exception | None = None
        """What the lines raised about a non-finite value when they were run again."""

    def release(self) -> None:
        """Let go of the models, so that no module of ours is found to hold them."""
        if type(self.model) is _Holder:
            self.model._modules.clear()
        self.raised = None

    def following(self, ahead: int) -> Sequence[Any] | None:
        """What comes next is not known yet, so batches from just before stand in for it."""
        if ahead > len(self._before) or self.forward_only:
            return None
        return [LoopPassBatch(loop_pass, loop_pass.batch) for loop_pass in self._before[ahead - 1]]

    def prepare_following(self, ahead: int) -> None:
        for parameter in self._loop.parameters:
            parameter.grad = None

    @contextmanager
    def examining(self) -> Iterator[None]:
        """Around a whole diagnosis: afterwards everything is as it was, also the gradients of what the lines read."""
        leaves = [tensor for loop_pass in self.loop_passes for tensor in tensors_in(loop_pass.taken) if tensor.is_leaf]
        self._others = [tensor for kind, _, tensor in self.state_read() if kind == "parameter"]
        leaves += self._others
        with ExitStack() as stack:
            stack.enter_context(gradients_kept([leaf for leaf in leaves if leaf.requires_grad]))
            stack.enter_context(torch.enable_grad())
            stack.callback(self._tables.restore)
            stack.enter_context(super().examining())
            yield

    def _kept(self) -> AbstractContextManager[Rehearsal]:
        """Also what is reached from the lines; what they call is looked at by `supervised`."""
        values = [value for loop_pass in self.loop_passes for value in loop_pass.taken.values()]
        given = [tensor for loop_pass in self.loop_passes for tensor in tensors_in(loop_pass.batch)]
        return reached_objects_kept(
            [self.model, *values], strict=False, restored=[*self._loop.parameters, *self._others, *given]
        )

    def restore(self) -> None:
        super().restore()
        for parameter in self._others:
            parameter.grad = None

    def why_not(self) -> str | None:
        """Why these lines cannot stand for the step, as a clause; None if they give the loss that the loop had.

        The lines are supervised in this run: one with an effect ends it. Call inside `examining`."""
        try:
            return self._compared()
        except HasEffect as effect:
            return f"running the loop's lines again would have an effect: {effect}"
        except UsesCollectives:
            raise
        except Exception as error:  # their lines, out of their place, may raise anything
            self.raised = error if near_a_nan(error) else None
            return f"the loop's lines raise {type(error).__name__} when they are run again"[:200]

    def rewound(self) -> list[LoopPass] | None:
        """The same lines with generators of the program's own as they were before the lines drew from them in the
        step, if that is as many numbers as now; None where they draw from none, or where that cannot be known."""
        counts: list[dict[torch.Generator, int]] = []
        try:
            with self.examining():
                self.restore()
                for batch in self.batches:
                    with self.supervised(noted := batch.loop_pass.noted(self._tables)):
                        self.forward(batch)
                    found = {each: drawn_between(*states) for each, states in noted.drawn.items() if _on_host(each)}
                    counts.append({each: count for each, count in found.items() if count is not None})
        except (Exception, HasEffect):  # their lines, out of their place, may raise anything
            return None
        passes, later = [], Counter[torch.Generator]()
        for loop_pass, count in reversed(list(zip(self.loop_passes, counts, strict=True))):
            later.update(count)
            states = tuple((each, state_before(each.get_state(), number)) for each, number in later.items())
            passes.append(replace(loop_pass, generators=states))
        return passes[::-1] if later else None

    def _compared(self) -> str | None:
        self.restore()
        for batch in self.batches:
            with self.supervised(batch.loop_pass.noted(self._tables)):
                begun = _node_number()
                terms = self.forward(batch)
                loss = terms["loss"].detach() * (self._loss_scale if batch.loop_pass.slice.scaled else 1.0)
                had = batch.loop_pass.loss.reshape(()).to(loss.device)
                if not bool(torch.isclose(loss.double(), had.double(), rtol=1e-6, atol=0.0, equal_nan=True)):
                    return f"the loop's lines give a loss of {float(loss):.6g} when run again, not {float(had):.6g}"
                self.forward_only = self.forward_only or _made_before(terms["loss"], begun)
                if self.forward_only and bool(torch.isfinite(loss)):
                    return MADE_BEFORE
                self.backward(terms)
        hangs = any(tensor.grad_fn is not None for each in self.loop_passes for tensor in tensors_in(each.taken))
        bad = any(not bool(torch.isfinite(loop_pass.loss)) for loop_pass in self.loop_passes)
        if hangs and not bad and self.gradients_finite():
            return MADE_BEFORE  # the gradient went bad behind what they read, and that is not run again
        return None

    @contextmanager
    def supervised(self, state: UserState) -> Iterator[None]:
        """A run that ends at a line with an effect. `state`, as it is now, is noted once for forward and backward: that
        means to look at thousands of objects, and takes longer where each call is supervised."""
        with supervised(state, self.restored_tensors()):
            self._noted = state
            try:
                yield
            finally:
                self._noted = None

    @contextmanager
    def same_state(self) -> Iterator[None]:
        """Around many runs between which nothing of the program is changed: what they restore is noted once."""
        self._noted = self._user_state()
        try:
            yield
        finally:
            self._noted = None

    def restored_tensors(self) -> list[Tensor]:
        """Tensors that the lines may write to, because they are restored after each run."""
        owned = [*self.model.parameters(), *self.model.buffers(), *self._loop.parameters]
        plain = [value for module in self.model.modules() for value in vars(module).values()]
        gradients = [tensor.grad for tensor in owned if tensor.grad is not None]
        return [*owned, *gradients, *(value for value in plain if is_tensor(value))]

    def sound(self) -> bool:
        """Whether losses and gradients come out finite: with several ranks, whether another one caused the refusal."""
        with self.examining():
            self.restore()
            for batch in self.batches:
                terms = self.forward(batch)
                if not bool(torch.isfinite(terms["loss"])):
                    return False
                self.backward(terms)
            return self.gradients_finite()

    def spoiled_by(self, after: LinesAfter, refused: Sequence[Tensor | None] | None = None) -> bool | None:
        """Whether gradients that are finite after backward are not after these lines, which the loop runs behind it:
        then they belong to the step from here on. None where they cannot be run again, or do not give the gradients
        that were `refused`."""
        if len(self.batches) != 1 or self._loss_scale != 1.0:
            return None
        if not self.sound():
            return False
        self._after = after
        bad: bool | None = None
        try:
            with self.examining():
                self.restore()
                with self.supervised(self._user_state()):
                    self.backward(self.forward(self.batches[0]))
                    bad = not self.gradients_finite()
                if refused is not None and not all(map(_same, (p.grad for p in self._loop.parameters), refused)):
                    bad = None
        except (Exception, HasEffect):
            bad = None
        self._after = after if bad else None
        return bad

    def state_read(self) -> Iterator[tuple[str, str, Tensor]]:
        """Parameters and buffers of modules that the lines can read and that are not trained here: a teacher, say."""
        known = {id(module) for module in self.model.modules()}
        for path, module in _modules_in(self.loop_passes[0].taken):
            if id(module) not in known:
                yield from (("parameter", f"{path}.{name}", each) for name, each in module.named_parameters())
                yield from (("buffer", f"{path}.{name}", each) for name, each in module.named_buffers())

    def gradients_finite(self) -> bool:
        """Whether the gradients as they are now are finite."""
        gradients = [parameter.grad for parameter in self._loop.parameters if parameter.grad is not None]
        return all(bool(torch.isfinite(gradient).all()) for gradient in gradients)

    def forward(self, batch: LoopPassBatch) -> Mapping[str, Tensor]:  # type: ignore[override]
        limits().check()
        self._evaluated = batch
        own = any(batch.loop_pass is loop_pass for loop_pass in self.loop_passes)
        noted = self._noted if own and self._noted is not None else batch.loop_pass.noted(self._tables)
        return {"loss": batch.loop_pass.again(batch.names, noted).reshape(())}

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        loss = terms["loss"]
        if not loss.requires_grad or self.forward_only:
            return
        state = self._noted or self._user_state()  # hooks on gradients are the program's as well
        try:
            (loss * self._loss_scale if self._loss_scale != 1.0 else loss).backward()  # type: ignore[no-untyped-call]
            if not any(parameter.grad is not None for parameter in self._loop.parameters):
                self.feels_update = not any(parameter.grad is not None for parameter in self._others)
            if self._after is not None:
                with torch.set_grad_enabled(self._grad_enabled):
                    self._after.run(self._evaluated.changed())
        finally:
            state.restore()

    def _user_state(self) -> UserState:
        """The program's own objects within reach of the lines, as they are now."""
        values = [value for loop_pass in self.loop_passes for value in loop_pass.taken.values()]
        more = self._after.taken.values() if self._after is not None else ()
        names = [loop_pass.module_globals for loop_pass in self.loop_passes]
        return UserState([*values, *more], names, self._tables)

    def commit(self) -> None:
        """The optimizer's step, with the loss scale divided out first as a GradScaler does."""
        if self._loss_scale != 1.0:
            for parameter in self._loop.parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self._loss_scale)
        if isinstance(self._loop.optimizer, LBFGS):
            self._loop.optimizer.step(self._evaluate)  # type: ignore[no-untyped-call]
        else:
            super().commit()

    def _evaluate(self) -> Tensor:
        """The closure of an optimizer that evaluates several times in a step: the last batch once more."""
        for parameter in self._loop.parameters:
            parameter.grad = None
        terms = self.forward(self._evaluated)
        self.backward(terms)
        return terms["loss"].detach()


def _on_host(generator: torch.Generator) -> bool:
    return generator.device.type == "cpu"


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two gradients have the same numbers, where a NaN equals a NaN."""
    if one is None or other is None or one.shape != other.shape:
        return one is other
    return bool(torch.isclose(one, other, rtol=0.0, atol=0.0, equal_nan=True).all())


def _modules_in(taken: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """The modules among some values, and among the attributes of plain objects there, with the way to each."""
    for name, value in taken.items():
        if isinstance(value, nn.Module):
            yield name, value
        elif isinstance(attributes := getattr(value, "__dict__", None), dict) and not isinstance(value, type):
            yield from ((f"{name}.{key}", each) for key, each in attributes.items() if isinstance(each, nn.Module))


def _node_number() -> int:
    """The number that autograd gives to the next node of this thread."""
    node = torch.zeros((), requires_grad=True).clone().grad_fn
    return int(node._sequence_nr()) if node is not None else 0


def _made_before(loss: Tensor, begun: int) -> bool:
    """Whether a loss has no graph, or one that reaches nodes from before this run; leaves are not counted."""
    if loss.grad_fn is None:
        return True
    pending: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while pending and len(seen) < _MAX_NODES:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() != "torch::autograd::AccumulateGrad" and node._sequence_nr() < begun:
            return True
        pending += [after for after, _ in node.next_functions]
    return False


class _Holder(nn.Module):
    """Several models in one module for the time of a diagnosis."""


def together(modules: Sequence[nn.Module], loop_passes: Sequence[LoopPass]) -> nn.Module:
    """One module to speak of: the only one, or a holder in which each is called as the loop calls it."""
    each = list({id(inner(module)): inner(module) for module in modules}.values())
    if len(each) == 1:
        return each[0]
    names = {
        id(inner(v)): name
        for loop_pass in loop_passes
        for name, v in loop_pass.taken.items()
        if isinstance(v, nn.Module)
    }
    holder = _Holder()
    for number, module in enumerate(each):
        name = names.get(id(module), f"{type(module).__name__.lower()}{number}")
        holder.add_module(f"{name}_" if hasattr(holder, name) else name, module)
    return holder


class LoopPassBatch(Mapping[str, Any]):
    """The tensors that the lines read, by name, bound to the lines."""

    def __init__(self, loop_pass: LoopPass, names: Mapping[str, Any]) -> None:
        self.loop_pass, self.names = loop_pass, names

    def changed(self) -> dict[str, Any]:
        """Of the names those that have other values than the loop gave them: fewer rows, another type."""
        given = self.loop_pass.taken
        return {name: value for name, value in self.names.items() if name not in given or value is not given[name]}

    def __getitem__(self, key: str) -> Any:
        return self.names[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


# The diagnosis maps over batches as torch does, for one in float64: it must see into this one.
register_pytree_node(
    LoopPassBatch,
    lambda batch: (list(batch.names.values()), (batch.loop_pass, list(batch.names))),
    lambda values, about: LoopPassBatch(about[0], dict(zip(about[1], values, strict=True))),
)


def rows_of_loop_pass(size: int | None, each: int = 1) -> Any:
    """How to leave all but some rows of such a batch out; `size` is how many it has, and `each` how many rows the model
    was called with for one of them."""

    def select(batch: LoopPassBatch, rows: Sequence[int]) -> LoopPassBatch:
        if size is None:
            return batch
        return LoopPassBatch(
            batch.loop_pass, {name: narrow(value, list(rows), size, each) for name, value in batch.names.items()}
        )

    return select


def bad_pass(replayable: LoopStep) -> LoopPass | None:
    """The micro-batch whose loss or gradients are not finite; the first one."""
    with replayable.examining():
        replayable.restore()
        for loop_pass, batch in zip(replayable.loop_passes, replayable.batches, strict=True):
            terms = replayable.forward(batch)
            if not bool(torch.isfinite(terms["loss"])):
                return loop_pass
            replayable.backward(terms)
            if not replayable.gradients_finite():
                return loop_pass
    return None
