"""The model's call on one of the first batches, made again a few times with changed inputs.

Only the model is called again, in evaluation mode and without gradients: not the loss function, not the loop. Modes,
buffers, counters, attributes and random numbers are the same bits afterwards. What the loss wants of each prediction is
read off the gradient that came back to the model's output, so no label has to be known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...detect.graph.rules import frozen_by_mistake, saturated_activation
from ...detect.sampled.activation_probe import is_compiled
from ...detect.tensors.foreign_objects import hasattr, isinstance
from ...detect.tensors.nested_tensors import num_rows_in, tensors_in
from ...detect.tensors.quiet_hook import Handle, QuietHook, registered
from ...detect.tensors.readable_tensors import why_not_read
from ...records import Finding
from ...records.rerun_flag import rerun, rerunning
from ..state.rng import take_rng
from .held_state import HeldState
from .nearby_tensors import nearby_tensors
from .repeatable_call import why_not_repeat

_ROWS = 8
"""Rows of the batch that are enough."""
_AT = 1
"""The update whose batch is looked at: at the first one an output may be zero by its initialisation."""


class FirstBatch:
    """Catches one call of a model and its gradient, and looks at it once the update is made."""

    def __init__(self, model: nn.Module, failed: Callable[[Exception], None]) -> None:
        self._model = weakref.ref(model)
        self._failed_outside = failed
        self._handle: Handle | None = None
        self._call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._num_calls = 0
        self._used: list[Any] = []
        self._versions: list[int] = []
        self._beside: dict[str, Tensor] = {}
        self._recurrent: dict[str, float] = {}
        self._tables: list[Handle] = []
        self._read: dict[int, Tensor] = {}
        self.done = False

    def before_forward(self, step: int) -> None:
        """Listen to the forward that comes, where it is time. A comparison on other steps."""
        if self.done or step < _AT or (step == _AT and self._handle is not None):
            return
        model = self._model()
        if model is None or step > _AT or is_compiled(model) or why_not_repeat(model, HeldState(model)) is not None:
            self.close()
            return
        hook = QuietHook(self._returned, self._failed)
        self._handle = registered(model.register_forward_hook, hook, with_kwargs=True)
        for part in model.modules():
            if isinstance(part, nn.Embedding) and not part.weight.requires_grad:
                self._tables.append(registered(part.register_forward_hook, QuietHook(self._looked_up, self._failed)))
        for name, part in model.named_modules():
            if isinstance(part, nn.RNNBase):
                self._tables.append(registered(part.register_forward_hook, QuietHook(self._ran(name), self._failed)))

    def _failed(self, fault: Exception) -> None:
        self.close()
        self._failed_outside(fault)

    def close(self) -> None:
        """Leave no hook and keep nothing."""
        self.done = True
        if self._handle is not None:
            self._handle.remove()
        for handle in self._tables:
            handle.remove()
        self._handle, self._call, self._used, self._tables, self._read = None, None, [], [], {}
        self._beside, self._recurrent = {}, {}

    def _looked_up(self, table: nn.Embedding, args: Any, _output: Any) -> None:
        """Which rows of a frozen table the batch reads."""
        if args and not rerunning():
            self._read[id(table)] = args[0]

    def _ran(self, name: str) -> Callable[..., None]:
        def ran(module: nn.RNNBase, args: Any, _output: Any) -> None:
            if args and not rerunning() and name not in self._recurrent:
                self._recurrent[name] = saturated_activation.share_of_gates(module, args[0])

        return ran

    def _returned(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.done or rerunning() or not torch.is_grad_enabled() or model is not self._model():
            return
        if any(tensor.is_inference() for tensor in tensors_in((args, kwargs))):
            self.close()
            return
        self._num_calls += 1
        if self._num_calls > 1:
            return
        self._call = args, dict(kwargs)
        rows = num_rows_in((args, kwargs))
        self._beside = nearby_tensors(rows) if rows is not None else {}
        self._versions = [tensor._version for tensor in tensors_in((args, kwargs, self._beside))]
        found = vars(output) if hasattr(output, "__dataclass_fields__") else output
        for tensor in tensors_in(found):
            if tensor.requires_grad and tensor.dim() > 1 and tensor.is_floating_point():
                tensor.register_hook(QuietHook(self._came_back, self._failed))  # type: ignore[no-untyped-call]

    def _came_back(self, gradient: Tensor) -> None:
        """What the loss wants of an output: read off its gradient, which is not kept."""
        from ...checkup.trials.batch_facts import UsedOutput

        if not self.done and not rerunning() and gradient.layout is torch.strided:
            gradient = gradient.detach()
            self._used += UsedOutput.both_ways(gradient, gradient)

    @property
    def ready(self) -> bool:
        """Whether the call is there."""
        return not self.done and self._num_calls > 0

    def look(self, step: int) -> Sequence[Finding]:
        """Look at the call, after its update. A dozen forward passes of the model at most, once in a run."""
        call, used, model = self._call, self._used, self._model()
        versions, read, beside, recurrent = self._versions, self._read, self._beside, self._recurrent
        self.close()
        if model is None:
            return []
        judged = (frozen_by_mistake.judge(model, read) if read else None, saturated_activation.judge_gates(recurrent))
        found = [each for each in judged if each is not None]
        if call is None or not used or self._num_calls != 1 or any(map(why_not_read, tensors_in(call))):
            return found
        args, kwargs = call
        if versions != [tensor._version for tensor in tensors_in((args, kwargs, beside))]:
            return found  # the program has written into its batch since
        from ...checkup.trials.first_batch_probe import probe_call
        from ...checkup.trials.model_call import CaughtCall
        from ...checkup.trials.module_hooks import mapped

        rows = num_rows_in((args, kwargs))
        if rows is not None and rows > _ROWS:
            args, kwargs, beside = mapped(
                (args, kwargs, beside), lambda tensor: tensor[:_ROWS] if tensor.dim() else tensor
            )
            used = [each.of_rows(_ROWS) for each in used]
        held = HeldState(model)
        if held.unknown is not None:
            return found
        again = CaughtCall(model, args, kwargs, None, True, take_rng(), None)
        with rerun(), held.preserved():
            return [*found, *probe_call(again, used, beside=beside, number=step).findings]
