"""Hears the training calls of a model for `sg.attach(optimizer)`, or those of its parts where the program calls these
and never the model itself."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from torch import nn

from ...detect.loop.model_calls import callable_parts
from ...detect.sampled.activation_probe import is_compiled
from ...detect.tensors.living_objects import compiled_around
from ...detect.tensors.quiet_hook import QuietHook
from ...detect.tensors.torch_private import innermost_transform, outside_transforms

_MAX_FLOORS = 8
_CALL = nn.Module._call_impl.__code__


class HeardModels:
    """Calls `before(model)` and `after(output)` around each outermost call in training mode. `undo` gets what takes the
    hooks off."""

    def __init__(
        self, undo: list[Callable[[], Any]], before: Callable[[nn.Module], None], after: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self._undo, self._before, self._after, self._failed = undo, before, after, failed
        self._heard = weakref.WeakSet[nn.Module]()
        self._inside: list[int] = []
        self._thread = 0
        self._floors = 0

    def listen_to(self, models: Sequence[nn.Module]) -> None:
        for model in (each for each in models if each not in self._heard):
            self._heard.add(model)
            hooks = (QuietHook(call, self._failed) for call in (self._enter, self._leave))
            self._undo.append(model.register_forward_pre_hook(next(hooks)).remove)
            self._undo.append(model.register_forward_hook(next(hooks)).remove)

    def listen_elsewhere(self, model: nn.Module, *, parts: bool) -> None:
        """An update came and no call was heard. The model was compiled since, and compiled code calls no hook; or the
        program calls parts of it: then these are heard, one floor further down."""
        if compiled := compiled_around(model):
            self.listen_to(compiled)
        elif parts and self._floors < _MAX_FLOORS:
            self._floors += 1
            heard = [part for part in model.modules() if part in self._heard]
            below = [part for module in heard for child in module.children() for part in callable_parts(child)]
            self.listen_to([part for part in below if not is_compiled(part)])

    def forget_calls(self) -> None:
        """An update comes: no call is under way."""
        self._inside.clear()

    def _enter(self, model: nn.Module, _inputs: Any) -> None:
        if self._inside and not self._is_inside(model):
            self._inside.clear()  # a forward that raised, in a program that went on
        self._inside.append(id(model))
        if len(self._inside) == 1:
            self._thread = threading.get_ident()
            if model.training:
                with outside_transforms():
                    self._before(model)

    def _is_inside(self, model: nn.Module) -> bool:
        """Whether the first call that was heard is still under way around this one."""
        if threading.get_ident() != self._thread:
            return True
        outermost, left = self._inside[0], 2 if self._inside[0] == id(model) else 1
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _CALL:
                left -= id(frame.f_locals.get("self")) == outermost
                if not left:
                    return True
            frame = frame.f_back
        return False

    def _leave(self, model: nn.Module, _inputs: Any, output: Any) -> None:
        if id(model) in self._inside:  # a forward that raised left the calls inside it behind
            del self._inside[self._inside.index(id(model)) :]
        if model.training and not self._inside and innermost_transform() is None:
            self._after(output)
