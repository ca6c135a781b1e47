"""Whether all rows come to be mapped to the same point: the spread of the model's outputs, now and then.

A few sums over outputs that are there anyway, and over the gradients that come back to them, at a few updates. In
host memory only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...detect.loop.backward_root import backward_root
from ...detect.sampled.activation_probe import is_compiled
from ...detect.tensors.nested_tensors import tensors_in
from ...detect.tensors.quiet_hook import Handle, QuietHook, registered
from ...detect.tensors.torch_private import current_graph_task
from ...records import Finding
from ...records.rerun_flag import rerunning

_FIRST = 3
_EVERY, _UNTIL = 8, 400
_OFTEN = 2
"""The same while the loss is nothing but distances between rows, which is rare."""
_BALANCED = 1e-4
_MAX_NUMEL, _MAX_OUTPUTS = 1 << 20, 8
"""Elements of an output that is measured, and outputs of an update: copies of them are kept until it is made."""


@dataclass(slots=True, eq=False)
class _Output:
    """Rows that a call of the model returned: copies. Outputs at the same place of several calls are compared."""

    key: tuple[Any, ...]
    rows: Tensor
    used: bool = False
    """Whether a backward pass has come back to it."""


@dataclass(slots=True)
class _Pass:
    """One backward pass: the loss, the outputs that it reaches, and how much less it would be, to first order, if their
    rows were all the same."""

    loss: float
    centres: dict[tuple[Any, ...], Tensor]
    shapes: list[torch.Size] = field(default_factory=list)
    pulled: float = 0.0
    balanced: bool = True
    """The gradients of all rows add up to zero: the loss knows differences between rows alone, and no targets."""

    @property
    def share(self) -> float:
        """The part of the loss that is the difference between rows, where it compares outputs with each other."""
        pairs = len(self.shapes) - len(set(self.shapes))
        compares = pairs > 0 or (len(self.shapes) == 1 and self.balanced)
        return self.pulled / abs(self.loss) if compares and self.loss else 0.0


class CollapseWatch:
    """Measures at the first updates and then at every eighth, for a while. Keeps nothing of an output after it."""

    def __init__(self, model: nn.Module, failed: Callable[[Exception], None]) -> None:
        self._model = weakref.ref(model)
        self._failed_outside = failed
        self._handle: Handle | None = None
        self._outputs: list[_Output] = []
        self._passes: dict[int, _Pass] = {}
        self._input: Tensor | None = None
        self._spreads: list[float] = []
        self._distances: list[float] = []
        self._inputs: list[float] = []
        self._shares: list[float] = []
        self.done = False

    def before_forward(self, step: int) -> None:
        """Measure the forward that comes, where it is time. A comparison on other steps."""
        if step >= _FIRST and step % (_OFTEN if self._drawn else _EVERY):
            return
        model = self._model()
        if model is None or step > _UNTIL or is_compiled(model):
            self.close()
        elif self._handle is None and not self.done:
            self._handle = registered(
                model.register_forward_hook, QuietHook(self._returned, self._failed), with_kwargs=True
            )

    @property
    def _drawn(self) -> bool:
        from ...checkup.trials.batch_rules.representation_collapse import ALONE

        return len(self._shares) >= _FIRST and min(self._shares) >= ALONE

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
        self._handle, self._outputs, self._passes, self._input = None, [], {}, None

    def _returned(self, _model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.done or rerunning() or not torch.is_grad_enabled() or len(self._outputs) >= _MAX_OUTPUTS:
            return
        from ...checkup.trials.batch_rules.representation_collapse import spread

        made = [t for t in tensors_in(output) if t.dim() > 1 and t.is_floating_point() and t.requires_grad]
        if not made or made[0].numel() > _MAX_NUMEL or spread(made[0]) is None:
            self.done = True
            return
        if self._input is None:
            given = [t for t in tensors_in((args, kwargs)) if t.dim() > 1 and t.is_floating_point()]
            known = spread(given[0]) if given and given[0].numel() <= _MAX_NUMEL else None
            self._input = torch.ones(()) if known is None else known
        for place, tensor in enumerate(made):
            if tensor.numel() <= _MAX_NUMEL and len(tensor):
                rows = tensor.detach().reshape(len(tensor), -1).to(torch.float32, copy=True)
                kept = _Output((place, tensor.shape[1:]), rows)
                self._outputs.append(kept)
                tensor.register_hook(QuietHook(self._hook_of(kept), self._failed))  # type: ignore[no-untyped-call]

    def _hook_of(self, output: _Output) -> Callable[[Tensor], None]:
        def came_back(gradient: Tensor) -> None:
            if self.done or rerunning() or output.used or gradient.layout is not torch.strided:
                return
            from ...checkup.trials.batch_rules.representation_collapse import apart

            task = current_graph_task()
            if task not in self._passes:
                root = backward_root()
                loss = float(root) if root is not None and root.numel() == 1 else 0.0
                self._passes[task] = _Pass(loss, _centres([each for each in self._outputs if not each.used]))
            found = self._passes[task]
            output.used = True
            found.shapes.append(output.rows.shape)
            gradient = gradient.detach().reshape(output.rows.shape).float()
            found.balanced &= float(gradient.sum(0).abs().max()) <= _BALANCED * float(gradient.abs().sum(0).max())
            found.pulled += float((gradient * apart(output.rows, found.centres[output.key])).sum())

        return came_back

    def findings(self) -> Sequence[Finding]:
        """After an update: what the measurements so far show."""
        outputs, passes, of_input = self._outputs, self._passes, self._input
        self._off()
        from ...checkup.trials.batch_rules import representation_collapse

        together = [torch.cat(rows) for rows in _by_key(outputs).values()]
        spreads = [float(found) for rows in together if (found := representation_collapse.spread(rows)) is not None]
        if not spreads or of_input is None:
            return ()
        self._spreads.append(max(spreads))
        self._distances.append(max(representation_collapse.distance(rows) for rows in together))
        self._inputs.append(float(of_input))
        self._shares.append(min((each.share for each in passes.values()), default=0.0))
        judged = representation_collapse.judge("the model", self._spreads, self._inputs, self._shares, self._distances)
        if judged is None:
            return ()
        self.done = True
        return (judged,)

    @property
    def listening(self) -> bool:
        """Whether the step under way is measured."""
        return self._handle is not None

    @property
    def ready(self) -> bool:
        """Whether `findings` has something to do."""
        return self._handle is not None and (self.done or bool(self._outputs))


def _by_key(outputs: Sequence[_Output]) -> dict[tuple[Any, ...], list[Tensor]]:
    found: dict[tuple[Any, ...], list[Tensor]] = {}
    for each in outputs:
        found.setdefault(each.key, []).append(each.rows)
    return found


def _centres(outputs: Sequence[_Output]) -> dict[tuple[Any, ...], Tensor]:
    """The mean row of the outputs at each place."""
    return {key: torch.cat(rows).mean(0, keepdim=True) for key, rows in _by_key(outputs).items()}
