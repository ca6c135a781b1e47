"""The mode a step ran in, for running it again when other code has changed it meanwhile.

In the middle of a window, or with a step still in flight, a user may call `model.eval()` under `torch.no_grad()` and
evaluate. That settles what is open, and settling may have to run micro-batches again: as they ran, not as the
evaluation runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


class StepMode:
    """Which modules were training at the last step."""

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self._roots = list(roots)
        self.follow()

    def follow(self) -> None:
        """Modules were added or replaced: note the mode of those as well."""
        self._modules = [module for root in self._roots for module in root.modules()]
        self._training: list[bool] = []

    def note(self) -> None:
        """Remember the modes as they are now. Host only, tens of nanoseconds a module."""
        self._training = [module.training for module in self._modules]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within the block the modules are in the modes last noted and gradients are recorded."""
        now = [module.training for module in self._modules]
        with torch.inference_mode(False), torch.enable_grad():
            self._put(self._training)
            try:
                yield
            finally:
                self._put(now)

    def _put(self, training: list[bool]) -> None:
        for module, flag in zip(self._modules, training, strict=False):
            if module.training is not flag:
                module.training = flag
