"""The calls of a model in a refused step, as a patient of the diagnosis.

The loop around the model cannot be run again; its calls can, with their arguments, random numbers and precision, and
so can the backward from the gradients that came back to their outputs. What lies between a model's output and the
loss is not replayed: the loss is carried over as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ....detect.tensors.torch_private import dynamo_is_loaded, register_pytree_node, versions_kept
from ....diagnosis.replay.guard_step import select_rows
from ....diagnosis.replay.replayable import StepFacts
from ....diagnosis.replay.state_backup import StateBackup
from ....engine.recovery.preserved_attributes import preserved_attributes
from ....engine.recovery.reruns.quiet import quiet
from ....engine.recovery.reruns.reached_state import reached_objects_kept
from ....engine.recovery.reruns.rehearsal import Rehearsal
from ....engine.state.forward_state import Entry, ForwardState
from ....engine.state.training_state import TrainingState, Tree
from ....records.rerun_flag import rerun
from ...optimizer.optimizer_loop import OptimizerLoop
from ..hooks.call_log import Call, gradients_kept, inner, outputs_in


class ModelCallStep:
    """Satisfies `diagnosis.replay.replayable.Replayable`: its batches are calls."""

    def __init__(
        self, loop: OptimizerLoop, state: TrainingState, forward: ForwardState, entry: Entry, calls: Sequence[Call],
        facts: StepFacts, loss: float, model: torch.nn.Module | None = None,
    ) -> None:  # fmt: skip
        self.model = inner(calls[0].module) if model is None else model
        self.optimizers: Sequence[torch.optim.Optimizer] = [loop.optimizer]
        self.batches: Sequence[Any] = [CallBatch(call, call.batch) for call in calls]
        self.facts = facts
        self._loop, self._state, self._forward_state, self._entry = loop, state, forward, entry
        self._loss = loss
        self._state_backup: StateBackup | None = None
        self._unnamed: list[tuple[Tensor, Tensor]] = []
        self._last: tuple[Call, list[Tensor]] | None = None
        self._rehearsal: Rehearsal | None = None

    def restore(self) -> None:
        """Back to the moment before the first call, bit for bit."""
        self._as_it_was()
        self._forward_state.restore(self._entry)
        for parameter in (*self.model.parameters(), *self._loop.parameters):
            parameter.grad = None

    def _as_it_was(self) -> None:
        """Back to the moment when the examination began: of an update that was made, after its forward."""
        if self._state_backup is not None:
            self._state_backup.restore()
            with torch.no_grad():
                for parameter, before in self._unnamed:
                    parameter.data.copy_(before)

    @property
    def loop(self) -> OptimizerLoop:
        return self._loop

    def live(self) -> Tree:
        """Everything an update of this optimizer can change, as it is now. No copies."""
        return self._state.live()

    def restore_other(self, parts: Tree) -> None:
        """Another moment's parameters, moments and buffers; the rest as it was before the first call. Only inside an
        examination."""
        assert self._state_backup is not None
        self._forward_state.restore(self._entry)
        self._state_backup.restore(parts)
        for parameter in (*self.model.parameters(), *self._loop.parameters):
            parameter.grad = None

    def prepare(self) -> None:
        """What the loop did between steps is in the arguments already."""

    def forward(self, batch: CallBatch) -> Mapping[str, Tensor]:
        """The call again. Its loss is one of its outputs, or the loss of the loop carried over."""
        with self.rehearsed():
            outputs = list(outputs_in(batch.call.again(batch.arguments)))
        self._last = (batch.call, outputs)
        place = own_loss(batch.call)
        if place is not None and place < len(outputs):
            return {"loss": outputs[place].reshape(())}
        return {"loss": _carried(batch.call, outputs, self._loss)}

    def _kept(self) -> AbstractContextManager[Rehearsal]:
        return reached_objects_kept([self.model])

    def rehearsed(self) -> AbstractContextManager[None]:
        """Around a call that is made again: HasEffect where it does what could not be undone. Inside `examining`."""
        return self._rehearsal.run() if self._rehearsal is not None else nullcontext()

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        """From the gradients that came back to the outputs in the refused step."""
        assert self._last is not None
        call, _ = self._last
        place = own_loss(call)
        gradient = call.output_gradients[place].reshape(()) if place is not None else None
        loss = terms["loss"]
        if loss.requires_grad:
            loss.backward(gradient if gradient is None else gradient.to(loss))  # type: ignore[no-untyped-call]
        self._last = None

    def commit(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    @contextmanager
    def examining(self) -> Iterator[None]:
        """Around a whole diagnosis: afterwards everything is as it was, the gradients of the refused step too."""
        with ExitStack() as stack:
            stack.enter_context(preserved_attributes([self.model]))
            parameters = {id(p): p for p in (*self.model.parameters(), *self._loop.parameters)}
            tensors = [t for t in (*parameters.values(), *self.model.buffers()) if not t.is_inference()]
            # A graph that the program made before and uses after this update would else be refused by autograd.
            stack.enter_context(versions_kept(tuple(tensors)))
            stack.enter_context(rerun())
            stack.enter_context(quiet())
            self._rehearsal = stack.enter_context(self._kept())
            stack.callback(setattr, self, "_rehearsal", None)
            stack.enter_context(gradients_kept(list(parameters.values())))
            if dynamo_is_loaded():
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            self._state_backup = StateBackup(self.model, self.optimizers, self._state)
            # Parameters that the state does not name, those of no optimizer among them, are not restored with it.
            named = {id(parameter) for parameter in self._loop.named_parameters().values()}
            held = [p for part in nn.Module.modules(self.model) for p in part._parameters.values()]
            others = {id(p): p for p in (*self._loop.parameters, *held) if p is not None and p.requires_grad}
            self._unnamed = [(p, p.detach().clone()) for key, p in others.items() if key not in named]
            try:
                yield
            finally:
                self._as_it_was()
                self._state_backup, self._unnamed = None, []


class CallBatch(Mapping[str, Any]):
    """A call's arguments, shown as a batch and bound to the call."""

    def __init__(self, call: Call, arguments: Mapping[str, Any]) -> None:
        self.call, self.arguments = call, arguments

    def __getitem__(self, key: str) -> Any:
        return self.arguments[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arguments)

    def __len__(self) -> int:
        return len(self.arguments)


# The diagnosis maps over batches as torch does, for one in float64: it must see into this one.
register_pytree_node(
    CallBatch,
    lambda batch: (list(batch.arguments.values()), (batch.call, list(batch.arguments))),
    lambda values, about: CallBatch(about[0], dict(zip(about[1], values, strict=True))),
)


def rows_of_call(batch: CallBatch, rows: Sequence[int]) -> CallBatch:
    """The call with these rows of its arguments only."""
    return CallBatch(batch.call, select_rows(dict(batch.arguments), rows))


def own_loss(call: Call) -> int | None:
    """The place of the output that backward was called on, if the model computes its loss itself."""
    return call.loss_place if call.loss_place in call.output_gradients else None


def _carried(call: Call, outputs: list[Tensor], loss: float) -> Tensor:
    """The loop's loss as if it hung on these outputs: non-finite if they are, and with their recorded gradients.

    An output times zero is zero, or NaN if it is not finite: so a bad output shows in the loss and can be followed.
    """
    shown = torch.zeros((), device=outputs[0].device if outputs else None)
    for output in outputs:
        shown = shown + (output.detach() * 0).sum().to(shown)
    if torch.isfinite(shown):
        shown = shown + (loss if abs(loss) < float("inf") else 0.0)
    carrying = [place for place in call.output_gradients if place < len(outputs) and outputs[place].requires_grad]
    if not carrying:
        return shown
    gradients = tuple(call.output_gradients[place] for place in carrying)
    carried: Tensor = _Carry.apply(shown, gradients, *(outputs[place] for place in carrying))  # type: ignore[no-untyped-call]
    return carried


class _Carry(torch.autograd.Function):
    """A number whose gradient with respect to each output is the one recorded."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: tuple[Tensor, ...], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        # Not multiplied by `gradient`: it is one here, and a NaN that is recorded must stay where it was.
        return None, None, *ctx.gradients
