"""The user's step as the guard runs it: forward under the right autocast, backward with the right scale.

Nothing here judges or decides. An exception out of the user's own code is marked, so that the guard never takes it
for its own fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from ...detect.tensors.kept_content import RefilledMemory
from ...detect.tensors.nested_tensors import tensors_in
from ...records.errors import UsageError
from ...records.rerun_flag import rerunning
from ..config import GuardConfig
from ..fault_barrier import UserCodeError
from ..recovery.loss_modules import buffers_beside, preserved
from ..recovery.reruns.quiet import quiet
from ..recovery.reruns.rehearsal import Rehearsal
from ..state.batch_buffer import pristine

Terms = dict[str, Tensor]
Update = Callable[[], Any]
PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class UserStep:
    """Runs micro-batches. Forward and backward cost what they cost in the plain loop and nothing more."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[nn.Module, Any], Any],
        parameters: Sequence[Tensor],
        optimizers: Sequence[Optimizer],
        config: GuardConfig,
        scaler: Any,
        device: torch.device,
    ) -> None:
        self.model = model
        self.loss_fn = loss_fn
        self.parameters = parameters
        self.optimizers = optimizers
        self.precision = config.precision
        self.scaler = scaler
        self.accumulate = config.accumulate
        self.device = device
        self.dropped_terms: tuple[str, ...] = ()
        self.beside: tuple[Any, ...] = ()
        """Objects besides the model that the step's code may change: a trainer, a module of a framework."""
        self.restore_reached: Callable[[], None] | None = None
        """Restores what the step's code reaches, while it is run again."""
        self.rehearsal: Rehearsal | None = None
        """Ends a run of the step that would leave a trace, while it is run again."""
        self.closed: str | None = None
        """What the last refused step reaches that must not be used again, where several ranks have asked."""
        self.began = False
        """Whether loss_fn has been called since this was last set to False."""
        self.answer: Any = None
        """What loss_fn has returned, as long as its backward has not begun."""
        self.writes_batches = False
        """Whether loss_fn was seen to write into a batch's tensors; from then on they are copied before it can."""
        self.refilled = RefilledMemory()
        """Whether the program refills the memory of its batches; from then on those on the host are copied."""

    def keep(self, batch: Any) -> Any:
        """The batch to run again if need be: its tensors, or copies where they were seen to be written to. Those on a
        GPU are copied to the host anyway, see `BatchBuffer`."""
        refilled = self.refilled.look(tensors_in(batch))
        return pristine(batch, clone=self.writes_batches, but_cuda=refilled)

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = PRECISIONS[self.precision]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def forward(self, batch: Any, *, original: Any = None) -> Terms | None:
        """The loss and its named terms with their graph, or None where the user's loss_fn skips the batch.

        loss_fn is given `original`, the user's own object, the first time, and a copy of `batch` when run again.
        """
        answer = self._call(batch, original)
        return None if answer is None else self.terms_of(answer)

    def _call(self, batch: Any, original: Any) -> Any:
        given = pristine(batch, clone=self.writes_batches) if original is None else original
        self.began = True
        if original is None and rerunning():
            return self._call_again(given)
        try:  # not `with theirs()`: this is every step's path
            if PRECISIONS[self.precision] is None:
                return self.loss_fn(self.model, given)
            with self.autocast():
                return self.loss_fn(self.model, given)
        except Exception as error:
            raise UserCodeError(error) from error

    def _call_again(self, given: Any) -> Any:
        """Unheard, for it was heard the first time; modules of others that the loss uses are left as they are."""
        try:
            seen = self.rehearsal.run() if self.rehearsal is not None else nullcontext()
            with quiet(), preserved(buffers_beside(self.loss_fn, self.model)), self.autocast(), seen:
                return self.loss_fn(self.model, given)
        except Exception as error:
            raise UserCodeError(error) from error

    def terms_of(self, answer: Any) -> Terms:
        """The loss and its named terms, of what loss_fn returned."""
        terms = named_terms(answer)
        if self.dropped_terms:
            kept = {k: value for k, value in terms.items() if k != "loss" and k not in self.dropped_terms}
            terms = {"loss": torch.stack([value.float() for value in kept.values()]).sum(), **kept}
        return terms

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        """Accumulate gradients as the plain loop does: loss / n, times the loss scale."""
        loss = terms["loss"]
        if self.accumulate > 1:
            loss = loss / self.accumulate
        self.answer = None
        try:
            if self.scaler is not None:
                loss = self.scaler.scale(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise UserCodeError(error) from error

    def micro(
        self, batch: Any, *, original: Any = None, before_backward: Callable[[Terms], None] | None = None
    ) -> Terms | None:
        """Forward and backward of one micro-batch; the terms come back without their graph. Does not sync."""
        self.answer = self._call(batch, original)
        if self.answer is None:
            return None
        terms = self.terms_of(self.answer)
        if before_backward is not None:
            before_backward(terms)
        self.backward(terms)
        return {name: value.detach() for name, value in terms.items()}

    def unscale(self) -> None:
        """Divide gradients by the loss scale, on the device."""
        if self.scaler is not None:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)

    @property
    def unscaled(self) -> bool:
        """Whether the gradients are free of a loss scale: there is none, or it has been divided out."""
        if self.scaler is None:
            return True
        states = self.scaler._per_optimizer_states
        return all(states[id(each)]["stage"] is not OptState.READY for each in self.optimizers)

    def inverse_scale(self) -> Tensor:
        """What unscaling multiplies by, on the device."""
        scale: Tensor = self.scaler._scale
        return scale.double().reciprocal().float()

    def scale_left(self) -> float:
        """What the gradients have to be multiplied by to be free of a loss scale. Reads the device."""
        return 1.0 if self.unscaled else float(self.inverse_scale())

    def scale(self) -> Tensor | None:
        """A copy of the loss scale, or None."""
        return None if self.scaler is None else self.scaler._scale.clone()

    def set_scale(self, scale: Tensor | None) -> None:
        """The loss scale as it was copied."""
        if self.scaler is not None and scale is not None:
            self.scaler._scale.copy_(scale)

    def update_scale(self) -> None:
        """Let the loss scale grow or shrink, on the device."""
        if self.scaler is not None:
            self.scaler.update()

    def forget(self) -> None:
        """Drop gradients and the scaler's note that it has unscaled them, as if the window had not been begun."""
        self.zero_grad()
        if self.scaler is not None:
            self.scaler._per_optimizer_states.clear()

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def named_terms(answer: Any) -> Terms:
    """What loss_fn returned, as named scalars with "loss" among them; one clear sentence if it cannot be."""
    if isinstance(answer, Tensor):
        terms: dict[str, Any] = {"loss": answer}
    elif isinstance(answer, Mapping):
        if "loss" not in answer:
            raise UserCodeError(
                UsageError(
                    f"loss_fn returned a mapping with no 'loss' (it has: {', '.join(map(str, answer)) or 'nothing'}). "
                    "Return the total under the key 'loss'; the other keys name its terms."
                )
            )
        terms = {str(name): value for name, value in answer.items()}
    else:
        raise UserCodeError(
            UsageError(
                f"loss_fn returned {type(answer).__name__}. Return the loss as a scalar tensor, a mapping of named "
                "scalar tensors with 'loss' as the total, or None to skip the batch."
            )
        )
    for name, value in terms.items():
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserCodeError(
                UsageError(
                    f"The {'loss' if name == 'loss' else f'loss term {name!r}'} is {shape}, not a scalar. "
                    "Reduce it (for example .mean()) before returning it."
                )
            )
    return {name: value if value.dim() == 0 else value.reshape(()) for name, value in terms.items()}
