"""Where a watch listens: the functions of torch that every training loop passes through, patched and put back.

Each patch calls the original exactly once with the arguments it was given, whatever happens on our side.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import dataloader

from ..patching import Patches
from .followers import raw_optimizer
from .updates import StepPatches

if TYPE_CHECKING:
    from .watch import Watch


def listen(watch: Watch) -> Patches:
    """Put every patch in place. Undone by `Patches.undo`."""
    patches = Patches()
    _optimizers(watch, patches)
    _backward_and_clipping(watch, patches)
    _schedules(watch, patches)
    _loaders(watch, patches)
    return patches


def _optimizers(watch: Watch, patches: Patches) -> None:
    steps = StepPatches(watch, patches)

    def made(original: Any, self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        steps.learn(self)
        watch.optimizer_made(self)

    def zeroed(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not torch.compiler.is_compiling():
            watch.zeroed()
        return result

    patches.around(Optimizer, "__init__", made)
    patches.around(Optimizer, "zero_grad", zeroed)
    patches.around(nn.Module, "zero_grad", zeroed)

    def scaler_step(original: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return watch.scaler_step(functools.partial(original, self, optimizer, *args, **kwargs), self, optimizer)

    def scale(original: Any, self: Any, outputs: Any) -> Any:
        result = original(self, outputs)
        watch.backwards.scaled(outputs, result)
        return result

    patches.around(torch.amp.GradScaler, "step", scaler_step)
    patches.around(torch.amp.GradScaler, "scale", scale)

    def script(original: Any, thing: Any, *args: Any, **kwargs: Any) -> Any:
        with watch.models.deaf_to(thing):
            return original(thing, *args, **kwargs)

    patches.around(torch.jit, "script", script)


def _backward_and_clipping(watch: Watch, patches: Patches) -> None:
    def backward(original: Any, self: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Traced by a compiler, or only counted on the meta device, there is no loss to look at.
        if torch.compiler.is_compiling() or self.device.type == "meta" or watch.away or watch.looked_into:
            return original(self, *args, **kwargs)
        watch.backward_begins(self)
        watch.backwards.depth += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            watch.backwards.depth -= 1

    patches.around(Tensor, "backward", backward)

    def clip(original: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or watch.away:
            return original(*args, **kwargs)
        return watch.clipping.clip(original, args, kwargs)

    inside = torch.nn.utils.clip_grad
    patches.around(inside, "clip_grad_norm_", clip)
    patched, before = inside.clip_grad_norm_, torch.nn.utils.clip_grad_norm_
    torch.nn.utils.clip_grad_norm_ = patched
    patches.also(lambda: setattr(torch.nn.utils, "clip_grad_norm_", before))


def _schedules(watch: Watch, patches: Patches) -> None:
    """Every class that defines a `step` of its own is patched when the first schedule of it is made."""
    known: set[type] = set()

    def step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, *args, **kwargs)
        return watch.followers.call(self, raw_optimizer(getattr(self, "optimizer", None)), call)

    def learn(kind: type) -> None:
        for base in kind.__mro__:
            if "step" in vars(base) and base not in known:
                known.add(base)
                patches.around(base, "step", step)

    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        learn(type(self))
        original(self, *args, **kwargs)
        watch.followers.note(self, raw_optimizer(getattr(self, "optimizer", None)))

    learn(LRScheduler)
    for kind in _all_kinds(LRScheduler):
        # A plateau is told a metric after an evaluation, which no refused update takes back.
        if not issubclass(kind, ReduceLROnPlateau):
            learn(kind)
    known.add(ReduceLROnPlateau)
    patches.around(LRScheduler, "__init__", made)

    def average(original: Any, self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, model, *args, **kwargs)
        return watch.followers.call(self, watch.optimizer_of(model), call)

    patches.around(AveragedModel, "update_parameters", average)


def _all_kinds(kind: type) -> set[type]:
    found: set[type] = {kind}
    below: type
    for below in type.__subclasses__(kind):
        found |= _all_kinds(below)
    return found


def _loaders(watch: Watch, patches: Patches) -> None:
    kind = dataloader._BaseDataLoaderIter

    def next_index(original: Any, self: Any) -> Any:
        index = original(self)
        watch.batches.drawn(self, index)
        return index

    def following(original: Any, self: Any) -> Any:
        batch = original(self)
        watch.handed_out(self, batch)
        return batch

    def reset(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        watch.batches.restarted(self)
        return original(self, *args, **kwargs)

    def made(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        watch.batches.restarted(self)
        original(self, *args, **kwargs)

    patches.around(kind, "__init__", made)
    patches.around(kind, "_next_index", next_index)
    patches.around(kind, "__next__", following)
    patches.around(kind, "_reset", reset)
