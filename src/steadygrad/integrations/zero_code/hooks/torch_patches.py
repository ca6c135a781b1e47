"""Where a watch listens: the functions of torch that every training loop passes through, patched and restored.

Each patch calls the original exactly once with the arguments it was given, whatever happens on our side, and is not to
be noticed: no function that looks at the frame of its caller is patched, our frames are not counted for warnings
(`patching.uncounted`), and under a compiler a patch is its original.
"""

from __future__ import annotations

import functools
import math
import traceback
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.jit import _recursive
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import dataloader

from ....detect.tensors.foreign_objects import getattr, isinstance
from ....engine.record.run_log import RunLog
from ...loops.own_hooks import our_hooks_off, without_our_hooks
from ...loops.patch_barrier import uncounted
from ...loops.patching import Patches
from ..launch.clean_tracebacks import without_patches
from .optimizer_step import StepPatches
from .schedulers_and_averages import raw_optimizer

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop


def listen(watch: ProcessLoop) -> Patches:
    """Put every patch in place. Undone by `Patches.undo`."""
    patches = Patches(watch.failed)
    watch.models.all.listen(patches)
    _optimizers(watch, patches)
    _backward_and_clipping(watch, patches)
    _schedules(watch, patches)
    _loaders(watch, patches)
    _copies(watch, patches)
    _states(watch, patches)
    watch.events.listen(patches)
    _tracebacks(patches)
    return patches


def _tracebacks(patches: Patches) -> None:
    """An error on its way through a patch knows its frames, and Python has no way to take them out before the program
    catches it. What the program writes of it with `traceback` or `logging` is without them."""

    def walk(original: Any, trace: Any) -> Any:
        return original(without_patches(trace))

    for name in ("walk_tb", "_walk_tb_with_full_positions"):
        patches.around(traceback, name, walk)


def _optimizers(watch: ProcessLoop, patches: Patches) -> None:
    steps = StepPatches(watch, patches)

    def made(original: Any, self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        steps.learn(self)
        watch.optimizer_made(self)

    def zeroed(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not is_compiling():
            watch.zeroed()
        return result

    patches.around(Optimizer, "__init__", made)
    patches.around(Optimizer, "zero_grad", zeroed)
    patches.around(nn.Module, "zero_grad", zeroed)

    step_of_scaler = uncounted(watch.scaler_step)

    def scaler_step(original: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, optimizer, *args, **kwargs)
        return step_of_scaler(functools.partial(original, self, optimizer, *args, **kwargs), self, optimizer)

    def scale(original: Any, self: Any, outputs: Any) -> Any:
        result = original(self, outputs)
        if not is_compiling():
            watch.backwards.scaled(outputs, result)
        return result

    def update(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        return watch.scales.update(functools.partial(original, self), self, *args, **kwargs)

    patches.around(torch.amp.GradScaler, "step", scaler_step)
    patches.around(torch.amp.GradScaler, "update", update)
    patches.around(torch.amp.GradScaler, "scale", scale)


def _copies(watch: ProcessLoop, patches: Patches) -> None:
    """A copied, saved or scripted model carries no hook of ours."""

    def script(original: Any, nn_module: Any, *args: Any, **kwargs: Any) -> Any:
        # Inside of `torch.jit.script` and `trace`, which look up names in the frame of their caller; this does not.
        with our_hooks_off(nn_module):
            return original(nn_module, *args, **kwargs)

    def state(original: Any, self: nn.Module) -> Any:
        found = original(self)
        return without_our_hooks(found) if isinstance(found, dict) else found

    patches.around(_recursive, "create_script_module", script)
    patches.around(nn.Module, "__getstate__", state)


def _states(watch: ProcessLoop, patches: Patches) -> None:
    """What a program takes of its models and loads into them."""
    loads = watch.sampled.loads

    def taken(original: Any, self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = original(self, *args, **kwargs)
        if not (args or "destination" in kwargs or watch.away):  # else it is that of a part
            with watch.barrier("states", None):
                loads.taken(state)
        return state

    def loaded(original: Any, self: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        looks = not watch.away
        with watch.barrier("states", None):
            if looks:
                loads.loading(self, state_dict)
        result = original(self, state_dict, *args, **kwargs)
        with watch.barrier("states", None):
            if looks:
                loads.loaded(self, state_dict, result)
        return result

    patches.around(nn.Module, "state_dict", taken)
    patches.around(nn.Module, "load_state_dict", loaded)


def _backward_and_clipping(watch: ProcessLoop, patches: Patches) -> None:
    def backward(original: Any, self: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Traced by a compiler, or only counted on the meta device, there is no loss to look at. A tensor subclass goes
        # through here twice for one backward, the second time from inside the first.
        if is_compiling() or self.is_meta or watch.is_called_elsewhere(None) or watch.backwards.depth:
            return original(self, *args, **kwargs)
        watch.backward_begins(self)
        watch.backwards.depth += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            watch.backwards.depth -= 1

    patches.around(Tensor, "backward", backward)

    measured_clip = uncounted(watch.clipping.clip)

    def clip(original: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or watch.away:
            return original(*args, **kwargs)
        norm = measured_clip(original, args, kwargs)
        with watch.in_events:
            watch.events.clipped(norm)
        return norm

    inside = torch.nn.utils.clip_grad
    patches.around(inside, "clip_grad_norm_", clip, listed=True)
    patched, before = inside.clip_grad_norm_, torch.nn.utils.clip_grad_norm_
    torch.nn.utils.clip_grad_norm_ = patched
    patches.also(lambda: setattr(torch.nn.utils, "clip_grad_norm_", before))


def _schedules(watch: ProcessLoop, patches: Patches) -> None:
    """Every class that defines a `step` is patched when the first scheduler of it is made."""
    known: set[type] = set()
    follow = uncounted(watch.followers.call)

    def step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        call = functools.partial(original, self, *args, **kwargs)
        return follow(self, raw_optimizer(getattr(self, "optimizer", None)), call)

    def plateau(original: Any, self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, metrics, *args, **kwargs)
        call = functools.partial(original, self, metrics, *args, **kwargs)
        optimizer = raw_optimizer(getattr(self, "optimizer", None))
        return follow(self, optimizer, call, lambda: not math.isfinite(float(metrics)))

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
        if not issubclass(kind, ReduceLROnPlateau):
            learn(kind)
    known.add(ReduceLROnPlateau)
    patches.around(ReduceLROnPlateau, "step", plateau)
    patches.around(LRScheduler, "__init__", made)

    def average(original: Any, self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, model, *args, **kwargs)
        call = functools.partial(original, self, model, *args, **kwargs)
        return follow(self, watch.optimizers.that_stepped(model), call)

    def used(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and not watch.away:
            watch.sampled.averages.used(self, watch.step)
        return original(self, *args, **kwargs)

    patches.around(AveragedModel, "update_parameters", average)
    patches.around(AveragedModel, "forward", used)


def _all_kinds(kind: type) -> set[type]:
    found: set[type] = {kind}
    below: type
    for below in type.__subclasses__(kind):
        found |= _all_kinds(below)
    return found


def _loaders(watch: ProcessLoop, patches: Patches) -> None:
    kind = dataloader._BaseDataLoaderIter

    def next_index(original: Any, self: Any) -> Any:
        index = original(self)
        with watch.barrier("batches", None):
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
        if args and not watch.away:
            with watch.barrier("batches", None):
                watch.batches.begins(args[0])
        original(self, *args, **kwargs)

    patches.set(RunLog, "refine", staticmethod(watch.examiner.with_line_of_loader))  # of the guards of trainers too
    patches.around(kind, "__init__", made)
    patches.around(kind, "_next_index", next_index)
    patches.around(kind, "__next__", following)
    patches.around(kind, "_reset", reset)
