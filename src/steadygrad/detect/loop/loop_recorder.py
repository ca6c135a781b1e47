"""Listens to one model and its optimizers and keeps the record of their loop.

Hooks that torch offers for this: on the model's call, on the autograd node of what it returns, on the optimizer's step
and on the loading of its state. No function is patched. Nothing waits for a device, except where gradients seem never
to be cleared: then one of them is read, a few times in a run. A gradient that was cleared is known by its object and
its version counter.

The first updates are recorded one by one, later ones a few in a row now and then.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...records import Finding, Reading
from ...records.rerun_flag import rerunning
from ..graph.graph_findings import num_ranks
from ..graph.live_graph import LOOKS, LiveGraph
from ..graph.rules import reference_aliased, weight_decay_dominates
from ..graph.rules.reference_aliased import ModuleCall
from ..sampled.activation_probe import is_compiled
from ..tensors.foreign_objects import hasattr, isinstance
from ..tensors.nested_tensors import num_rows_in, tensors_in
from ..tensors.quiet_hook import QuietHook, registered
from ..tensors.torch_private import current_graph_task
from .backward_root import backward_root
from .measured.hand_decay import HandDecay
from .measured.same_content import SameContent
from .model_calls import CallsSeen, ModeModules, note_call
from .recorded_optimizer import RecordedOptimizer
from .whole_run import unmoved_copies
from .whole_run.replicas import Replicas

_EVERY_ONE = 200
_THEN_EVERY, _IN_A_ROW = 50, 4
_WITH_NUMBERS = 12
_MAX_PULLS, _MAX_NUMEL = 64, 1 << 22
_SETUP_AT = (0, 10)
_MAX_COPIES = 8


class LoopRecorder:
    """The loop of one model. `take()` gives what the rules found and was not given yet."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        failed: Callable[[Exception], None],
        on_news: Callable[[], None] = lambda: None,
        values: bool = True,
        copies: Sequence[nn.Module] = (),
        graph: LiveGraph | None = None,
        own_loop: bool = False,
    ) -> None:
        """With `values` False no tensor is read: only what can be known on the host is recorded. `copies` are other
        modules that hold parameters of the model, `graph` is what has looked at the first loss already. With `own_loop`
        the program cannot exchange gradients before the update."""
        self._failed_outside, self._on_news = failed, on_news
        self._model = weakref.ref(model)
        self._copies = [weakref.ref(copy) for copy in copies]
        self._modes: ModeModules | None = None
        self.calls = CallsSeen()
        self._backward_task = -1
        self._updates = 0
        self._left = _EVERY_ONE
        """Updates that are still to be recorded without a pause."""
        self._loops = [RecordedOptimizer(model, optimizer) for optimizer in optimizers]
        self._graph = graph or LiveGraph(model, optimizers, failed)
        self._content: SameContent | None = SameContent() if values else None
        self._content_due = True
        self._decay: HandDecay | None = HandDecay() if values else None
        self._unmoved = unmoved_copies.UnmovedCopies()
        self._replicas = Replicas()
        self._replicas.done = own_loop or not values or num_ranks() > 1
        self._others: list[ModuleCall] = []
        self._rows: int | None = None
        self._said: set[str] = set()
        self._loss: Tensor | None = None
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._undo: list[Callable[[], None]] = []
        self._closed = False
        self._values = values
        if not values:
            for loop in self._loops:
                loop.sizes.off = loop.unmoved.done = True
                loop.groups.reads = False
        self._listen(_EVERY_ONE)

    def _listen(self, updates: int) -> None:
        """Record so many updates from here on."""
        model, hook = self._model(), self._hook
        optimizers = [reference() for reference in self._optimizers]
        # A hook on compiled code makes it be compiled anew; not every optimizer offers hooks.
        if model is None or is_compiled(model) or not all(hasattr(o, "_optimizer_step_pre_hooks") for o in optimizers):
            self._closed, self._left = True, 0
            return
        self._left = updates
        self._undo = [
            registered(model.register_forward_pre_hook, hook(self._called), with_kwargs=True).remove,
            registered(model.register_forward_hook, hook(self._returned)).remove,
        ]
        for copy in self._copies:
            module = copy()
            # A shallow copy may share the dictionary of the model's hooks.
            if module is not None and module._forward_pre_hooks is not model._forward_pre_hooks:
                self._undo.append(
                    registered(module.register_forward_pre_hook, hook(self._called), with_kwargs=True).remove
                )
        for loop, reference in zip(self._loops, self._optimizers, strict=True):
            if (optimizer := reference()) is not None:
                self._undo.append(registered(optimizer.register_step_pre_hook, hook(self._before_update(loop))).remove)
                self._undo.append(registered(optimizer.register_step_post_hook, hook(self._after_update(loop))).remove)
            for name, layer in loop.adapted_layers:
                if (module := layer()) is not None:
                    self._undo.append(
                        registered(module.register_forward_hook, hook(self._layer_ran(loop, name))).remove
                    )

    def _pause(self) -> None:
        undo, self._undo = self._undo, []
        for remove in undo:
            remove()
        self.skipped()

    def before_forward(self, step: int) -> None:
        """Pause, or go on after a pause, where it is time: not inside of a hook. A comparison on other steps."""
        if self._left <= 0 and self._undo:
            if not _something_is_compiled():  # it would be compiled anew
                self._pause()
        elif not self._undo and not self._closed and step % _THEN_EVERY == 0:
            self._listen(_IN_A_ROW)

    def next_look(self, step: int) -> int:
        """The first step after this one at which `before_forward` may have something to do."""
        return step + 1 if self._undo else (step // _THEN_EVERY + 1) * _THEN_EVERY

    def ended(self) -> None:
        """The training ends: what was loaded after the last update counts, too, and what never took place."""
        for loop in self._loops:
            loop.ended()

    @property
    def waits_for_the_end(self) -> bool:
        """Whether something is known that counts only if it stays so to the end."""
        return any(loop.groups.at_the_end() for loop in self._loops)

    def holds_idle(self, parameters: Sequence[Tensor]) -> bool:
        """Whether one of these is in a group that never had a rate."""
        return any(loop.groups.holds(parameters) for loop in self._loops)

    def close(self) -> None:
        """Leave no hook."""
        self._closed = True
        self._replicas.close()
        self._pause()
        for loop in self._loops:
            loop.state.close()

    def take(self) -> list[Finding]:
        """What the rules found since the last call."""
        return [*self._graph.take(), *(finding for loop in self._loops for finding in loop.take())]

    def before_backward(self, loss: Tensor) -> None:
        """A loss, before its backward, where the entry point sees it."""
        if self.wants_losses:
            QuietHook(self._look, self._failed)(loss)

    @property
    def wants_losses(self) -> bool:
        """Whether `before_backward` looks at what it is given."""
        return self._values and not self._idle and self._graph.due(self._updates)

    def _look(self, loss: Tensor) -> None:
        self._graph.loss(loss, self._updates, self._rows)
        if self._graph.found:
            self._on_news()

    def settled(self, reading: Reading) -> None:
        """The numbers of an update became known. A step late where the device decides."""
        if self._undo and len(self._loops) == 1 and self._loops[0].settled(reading):
            self._on_news()

    @property
    def wants_numbers(self) -> bool:
        """Whether `settled` is of use: at the first updates."""
        return bool(self._undo) and self._left > 0

    def loaded(self, **sentences: str) -> None:
        """What is wrong with the batches that loaders deliver, by the names in the record; nothing where nothing is."""
        for loop in self._loops:
            for name, sentence in sentences.items():
                setattr(loop.record, name, sentence)

    def measure_no_sizes(self) -> None:
        """The size of a gradient before the update says nothing."""
        for loop in self._loops:
            loop.sizes.off = True

    def skipped(self) -> None:
        """An update that was due was not made: what was recorded for it is no sample of anything."""
        self.calls, self._others = CallsSeen(), []
        for loop in self._loops:
            loop.begin_window()

    def _compare_modules(self) -> None:
        others, self._others = self._others, []
        model = self._model()
        if model is not None and self._updates < _WITH_NUMBERS:
            found = reference_aliased.judge([ModuleCall(model, bool(self.calls.trained), "the model"), *others], model)
            if found is not None and found.code not in self._said:
                self._said.add(found.code)
                self._graph.found.append(found)

    # -- hooks

    def _hook(self, call: Callable[..., None]) -> QuietHook:
        return QuietHook(call, self._failed)

    def _failed(self, fault: Exception) -> None:
        """What breaks once would break at every update. The hooks do nothing until they are taken off."""
        self._closed, self._left = True, 0
        self._failed_outside(fault)

    @property
    def _idle(self) -> bool:
        return self._left <= 0 or rerunning()

    def _called(self, model: nn.Module, args: Any, kwargs: Any = None) -> None:
        """Without `kwargs` where the hook was taken off in the middle of this call: then nothing is noted."""
        if self._idle:
            return
        if self._modes is None or self._updates % _THEN_EVERY == 0:
            self._modes = ModeModules(model)
        if model is not self._model():  # a shallow copy has the hooks of the original
            if len(self._others) < _MAX_COPIES and self._updates < _WITH_NUMBERS:
                self._others.append(ModuleCall(model, torch.is_grad_enabled()))
            return
        note_call(self.calls, self._modes, model, (args, kwargs))
        if self._decay is not None:
            self._compare_weights(model)
        if self._content is not None and self._content_due and torch.is_grad_enabled():
            self._compare_content((args, kwargs))
        if not self._graph.done and torch.is_grad_enabled():
            self._rows = num_rows_in((args, kwargs))

    def _compare_weights(self, model: nn.Module) -> None:
        """Whether the program has shrunk the weights since the update."""
        decay = self._decay
        if decay is None:
            return
        decay.called()
        if decay.done:
            self._decay = None
        if decay.factor is not None:
            names = {id(parameter): name for name, parameter in model.named_parameters()}
            optimizers = [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]
            found = weight_decay_dominates.judge_by_hand(optimizers, decay.factor, names)
            if found is not None:
                self._graph.found.append(found)
                self._on_news()

    def _compare_content(self, arguments: Any) -> None:
        """What the first batches with gradients of the first updates are, once for each."""
        content = self._content
        if content is None or content.done:
            self._content = None
            return
        self._content_due = not content.called(arguments)
        for loop in self._loops:
            loop.record.same_rows, loop.record.same_noise = content.rows.found, content.noise.found
            loop.record.same_epochs, loop.record.same_memory = content.draws.found, content.memory.found

    def _returned(self, _model: nn.Module, _inputs: Any, output: Any) -> None:
        """Hear of the backward pass that reaches what the model returned."""
        if self._idle or not torch.is_grad_enabled():
            return
        found = tensors_in(output if not hasattr(output, "__dataclass_fields__") else vars(output))
        trained = [tensor for tensor in found if tensor.grad_fn is not None]
        if trained:
            # The predictions, where a loss is returned beside them.
            largest = max(trained, key=Tensor.dim)
            if not self._replicas.done:
                self._replicas.returned(largest)
            largest.grad_fn.register_prehook(self._hook(self._backward))  # type: ignore[union-attr]

    def _backward(self, gradients: Any) -> None:
        task = current_graph_task()
        if self._idle or task == self._backward_task:
            return
        self._backward_task = task
        looks = self._values and self._graph.due(self._updates)
        if self._values and (looks or self._updates < _WITH_NUMBERS) and (loss := backward_root()) is not None:
            if self._updates < _WITH_NUMBERS:
                self._loss = loss.detach() if loss.numel() == 1 and loss.device.type == "cpu" else None
            if looks:
                self._look(loss)
        if self._values and 0 < self._updates < _WITH_NUMBERS:
            self._measure(gradients)
        for loop in self._loops:
            loop.backward_begins()
        torch.autograd.Variable._execution_engine.queue_callback(self._hook(self._backward_ended))

    def _measure(self, gradients: Any) -> None:
        """How many predictions the loss pulls at, and how much. Does not wait for a device."""
        found = [g for g in gradients if isinstance(g, Tensor) and g.dim() > 1 and g.layout is torch.strided]
        accumulates = any(loop.record.updates and loop.record.last.backwards > 1 for loop in self._loops)
        if accumulates and len(found) == 1 and len(self.calls.pulls) < _MAX_PULLS and found[0].numel() <= _MAX_NUMEL:
            each = found[0].detach().abs().sum(-1, dtype=torch.float32).flatten()
            self.calls.pulls.append(torch.stack([(each > 0).sum().float(), each.sum()]))

    def _backward_ended(self) -> None:
        if self._idle:
            return
        for loop in self._loops:
            loop.backward_ended()

    def _layer_ran(self, loop: RecordedOptimizer, name: str) -> Callable[..., None]:
        def ran(_module: nn.Module, _args: Any, _output: Any) -> None:
            if not self._idle and torch.is_grad_enabled():
                loop.layer_ran(name)

        return ran

    def _before_update(self, loop: RecordedOptimizer) -> Callable[..., None]:
        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if not self._idle:
                closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
                loop.update_begins(optimizer, closure=callable(closure))
                loop.last_layer = self._graph.last_layer
                if loop is self._loops[0] and self._updates in (0, *unmoved_copies.AT):
                    self._look_for_copies(loop)
                if loop is self._loops[0] and not self._replicas.done and (model := self._model()) is not None:
                    self._replicas.before_update(model, self._failed)
                    loop.record.replicas = self._replicas.found
                if self._values and self._updates <= 2 * LOOKS:
                    self._graph.before_update(self._updates)
                if self._values and self._updates in _SETUP_AT:
                    self._graph.setup(self._updates)
                if self._others:
                    self._compare_modules()
                if self._graph.found:
                    self._on_news()

        return before

    def _look_for_copies(self, loop: RecordedOptimizer) -> None:
        """At the first update and at two later ones."""
        model = self._model()
        if model is None or num_ranks() > 1:
            return
        if not self._updates:
            self._unmoved.before_first_update(model)
        else:
            found = self._unmoved.later(model, self._updates, reads=self._values)
            loop.record.idle_average = loop.record.idle_average or found

    def _after_update(self, loop: RecordedOptimizer) -> Callable[..., None]:
        def after(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            if self._idle:
                return
            loop.state.after_update(optimizer)
            calls, modes = self.calls, self._modes
            if self._values and modes is not None and calls.in_eval and self._updates < 2:
                calls.empty_statistics = modes.empty_statistics()
            if loop.update_ended(optimizer, calls, self._updates, self._loss):
                self._on_news()
            if self._decay is not None:
                self._decay.updated([p for group in optimizer.param_groups for p in group["params"]])
            if loop is self._loops[-1]:
                self.calls, self._loss, self._content_due = CallsSeen(), None, True
                self._updates += 1
                self._left -= 1

        return after


def _something_is_compiled() -> bool:
    """Whether the compiler has seen a frame in this process, such as an optimizer's step."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))
