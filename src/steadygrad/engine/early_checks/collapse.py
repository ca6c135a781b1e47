"""Whether all rows come to be mapped to the same point: the spread of the model's outputs, now and then.

Two sums over an output that is there anyway, at a few updates. In host memory only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ...detect.sampled.activation_probe import is_compiled
from ...detect.tensors.nested_tensors import tensors_in
from ...detect.tensors.quiet_hook import QuietHook
from ...records import Finding
from ...records.rerun_flag import rerunning

_FIRST = 3
_EVERY, _UNTIL = 8, 400
_MAX_NUMEL = 1 << 20
"""Elements of an output that is measured: a copy of it is made."""


class CollapseWatch:
    """Measures at the first updates and then at every eighth, for a while. Keeps nothing of an output."""

    def __init__(self, model: nn.Module, failed: Callable[[Exception], None]) -> None:
        self._model = weakref.ref(model)
        self._failed_outside = failed
        self._handle: RemovableHandle | None = None
        self._waiting: Tensor | None = None
        self._spreads: list[float] = []
        self._inputs: list[float] = []
        self._measured = False
        self.done = False

    def before_forward(self, step: int) -> None:
        """Measure the forward that comes, where it is time. A comparison on other steps."""
        if step >= _FIRST and step % _EVERY:
            return
        model = self._model()
        if model is None or step > _UNTIL or is_compiled(model):
            self.close()
        elif self._handle is None and not self.done:
            self._measured = False
            self._handle = model.register_forward_hook(QuietHook(self._returned, self._failed), with_kwargs=True)

    def _failed(self, fault: Exception) -> None:
        self.done = True
        self._failed_outside(fault)

    def close(self) -> None:
        """Leave no hook."""
        self.done = True
        self._off()

    def _off(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = None

    def _returned(self, _model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._measured or self.done or rerunning() or not torch.is_grad_enabled():
            return
        from ...checkup.trials.batch_rules.representation_collapse import spread

        self._measured = True
        given = [t for t in tensors_in((args, kwargs)) if t.dim() > 1 and t.is_floating_point()]
        made = [t for t in tensors_in(output) if t.dim() > 1 and t.is_floating_point() and t.requires_grad]
        of_output = spread(made[0]) if made and made[0].numel() <= _MAX_NUMEL else None
        of_input = spread(given[0]) if given and given[0].numel() <= _MAX_NUMEL else None
        if of_output is None:
            self.done = True
            return
        ones = torch.ones_like(of_output) if of_input is None else of_input
        self._waiting = torch.stack([of_output, ones])

    def findings(self) -> Sequence[Finding]:
        """After an update: what the measurements so far show."""
        self._off()
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return ()
        of_output, of_input = waiting.tolist()
        self._spreads.append(of_output)
        self._inputs.append(of_input)
        from ...checkup.trials.batch_rules import representation_collapse

        found = representation_collapse.judge("the model", self._spreads, self._inputs)
        if found is None:
            return ()
        self.done = True
        return (found,)

    @property
    def listening(self) -> bool:
        """Whether the step under way is measured."""
        return self._handle is not None

    @property
    def ready(self) -> bool:
        """Whether `findings` has something to do."""
        return self._handle is not None and self._measured
