"""The model's own call inside a step, caught once and made again with changed inputs. No gradients, evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ...detect.tensors.readable_tensors import why_not_read
from ...engine.early_checks.held_state import restore_values
from ...engine.state.rng import RngState, put_rng, take_rng
from .module_hooks import mapped, tensors_in

Change = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class CaughtCall:
    """One call of a module that was not made inside of another module's."""

    module: nn.Module
    args: Any
    kwargs: Any
    output: Any
    with_grad: bool
    rng: RngState
    autocast: tuple[str, torch.dtype] | None = None

    def inputs(self) -> list[Tensor]:
        return list({id(t): t for t in tensors_in((self.args, self.kwargs))}.values())

    def outputs(self) -> list[Tensor]:
        """The floating-point tensors it gave out."""
        found = {id(t): t for t in tensors_in(self.output) if t.is_floating_point() and t.dim()}
        return list(found.values())

    @torch.no_grad()
    def again(self, change: Change | None = None) -> list[Tensor]:
        """The outputs of the same call with changed inputs, with the same random numbers, in evaluation mode."""

        def changed(tensor: Tensor) -> Tensor:
            return (tensor if change is None else change(tensor)).detach().clone()

        modes = [(each, each.training) for each in self.module.modules()]
        # A normaliser that counts what it sees, in evaluation mode too, must see the same before each call.
        buffers = [(b, b._version, b.clone()) for b in self.module.buffers() if why_not_read(b) is None]
        kept, around = take_rng(), self._around()
        try:
            self.module.eval()
            put_rng(self.rng)
            with around:
                answer = self.module(*mapped(self.args, changed), **mapped(self.kwargs, changed))
        finally:
            put_rng(kept)
            for each, training in modes:
                each.training = training
            for buffer, version, values in buffers:
                restore_values(buffer, version, values)
        return [t for t in tensors_in(answer) if t.is_floating_point() and t.dim()]

    def _around(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.autocast is None else torch.autocast(self.autocast[0], dtype=self.autocast[1])


@dataclass(slots=True)
class CaughtCalls:
    """What was called while a step's forward ran."""

    calls: list[CaughtCall] = field(default_factory=list)
    read: dict[int, Tensor] = field(default_factory=dict)
    """The indices that frozen embeddings looked up, by the id of the module."""
    attended: set[tuple[int, ...]] = field(default_factory=set)
    """The shapes that attention layers were given whose first dimension is time."""

    def attends_over(self, rows: int) -> bool:
        """Whether an attention layer takes the rows for time steps."""
        return any(shape[0] == rows and rows not in shape[1:] for shape in self.attended)


@contextmanager
def catching() -> Iterator[CaughtCalls]:
    """Catch the outermost calls of modules within the block, whichever object they belong to."""
    caught = CaughtCalls()
    depth: list[tuple[nn.Module, RngState | None]] = []

    def before(module: nn.Module, args: Any) -> None:
        depth.append((module, take_rng() if not depth else None))

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        while depth:
            last, rng = depth.pop()
            if last is module:
                break
        else:
            return
        if isinstance(module, nn.Embedding) and not module.weight.requires_grad and args:
            caught.read[id(module)] = args[0]
        if isinstance(module, nn.MultiheadAttention) and not module.batch_first and args and args[0].dim() == 3:
            caught.attended.add(tuple(args[0].shape))
        if rng is not None and not depth:
            with_grad = torch.is_grad_enabled()
            caught.calls.append(CaughtCall(module, args, kwargs, output, with_grad, rng, _autocast(output)))

    handles = [
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after, with_kwargs=True, always_call=True),
    ]
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()
            # torch forgets to take this mark off, and warns about hooks that are not there.
            getattr(hooks_of_torch, "_global_forward_hooks_with_kwargs", {}).pop(handle.id, None)


def _autocast(output: Any) -> tuple[str, torch.dtype] | None:
    device = next((tensor.device.type for tensor in tensors_in(output)), "cpu")
    return (device, torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None
