"""One call changed where it stands: the same line, the same function, other arguments.

The change is made above autograd, so what is tried is what the edited line would do, in forward and in backward,
in every layer that runs the line. A checkpoint that recomputes runs the changed line again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ..replay.replay_step import ReplayChange
from ..trace.backward_mode import StaysInBackward
from ..trace.user_frames import current_stack

Operate = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class CallIntervention(ReplayChange):
    """Replace what happens at one call site: `site` is (file, line), `name` the function as the tracer saw it.

    `everywhere` takes all calls of that name in the file: a fault often has a twin on the next line. `also` are other
    functions with their own operations.
    """

    def __init__(
        self,
        site: tuple[str, int],
        name: str,
        operate: Operate,
        owners: frozenset[str],
        *,
        everywhere: bool = False,
        also: Mapping[str, Operate] | None = None,
    ) -> None:
        self.site, self.owners = site, owners
        self.operations = {**(also or {}), name: operate}
        self.everywhere = everywhere
        self.num_operated = 0

    @contextmanager
    def around(self) -> Iterator[None]:
        with _Operating(self):
            yield


class _Operating(StaysInBackward):
    def __init__(self, intervention: CallIntervention) -> None:
        super().__init__()
        self.intervention = intervention

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        operate = self.intervention.operations.get(getattr(func, "__name__", ""))
        if operate is not None:
            stack = current_stack(owners=self.intervention.owners)
            frame = stack.frames[0] if stack.frames else None
            file, line = self.intervention.site
            if frame is not None and frame.file == file and (self.intervention.everywhere or frame.line == line):
                self.intervention.num_operated += 1
                return operate(func, args, kwargs)
        return func(*args, **kwargs)


class BoundedName(ReplayChange):
    """A variable of one stretch of the program is another value wherever it is used there: `p = p.clamp_min(1e-6)`."""

    def __init__(
        self, file: str, lines: tuple[int, int], name: str, bound: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self.file, self.lines, self.name, self.bound = file, lines, name, bound

    @contextmanager
    def around(self) -> Iterator[None]:
        with _Bounding(self):
            yield

    def value(self) -> torch.Tensor | None:
        """What the variable is just now, where one of the lines runs."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename == self.file and self.lines[0] <= frame.f_lineno <= self.lines[1]:
                found = frame.f_locals.get(self.name)
                return found if isinstance(found, torch.Tensor) and found.is_floating_point() else None
            frame = frame.f_back
        return None


class _Bounding(StaysInBackward):
    def __init__(self, intervention: BoundedName) -> None:
        super().__init__()
        self.intervention = intervention

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        value = self.intervention.value()
        given = (*args, *kwargs.values())
        if value is None or getattr(func, "__name__", "") == "__get__" or not any(item is value for item in given):
            return func(*args, **kwargs)
        bounded = self.intervention.bound(value)
        args = tuple(bounded if item is value else item for item in args)
        return func(*args, **{key: bounded if item is value else item for key, item in kwargs.items()})


def tiny(tensor: torch.Tensor) -> float:
    """A floor that the dtype can hold and whose reciprocal it can hold too."""
    return 1e-3 if tensor.dtype is torch.float16 else 1e-6


def on_argument(index: int, repair: Callable[[torch.Tensor], torch.Tensor]) -> Operate:
    """Repair the index-th argument if it is a tensor; for index 0 the first that is one."""

    def operate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(args)
        if index == 0 and given and not isinstance(given[0], torch.Tensor):
            # A number comes first (an order, a base): what is meant is the first tensor.
            place = next((i for i, item in enumerate(given) if isinstance(item, torch.Tensor)), 0)
            given[place] = repair(given[place]) if isinstance(given[place], torch.Tensor) else given[place]
        elif index < len(given) and isinstance(given[index], torch.Tensor):
            given[index] = repair(given[index])
        elif "input" in kwargs and index == 0:
            kwargs = {**kwargs, "input": repair(kwargs["input"])}
        return func(*given, **kwargs)

    return operate


def on_floats(repair: Callable[[torch.Tensor], torch.Tensor]) -> Operate:
    """Repair every floating tensor among the arguments."""

    def fix(item: Any) -> Any:
        if isinstance(item, torch.Tensor) and item.is_floating_point():
            return repair(item)
        return type(item)(fix(part) for part in item) if type(item) in (list, tuple) else item

    def operate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*(fix(item) for item in args), **{key: fix(item) for key, item in kwargs.items()})

    return operate


def on_tensors(repair: Callable[[torch.Tensor], torch.Tensor]) -> Operate:
    """Repair every tensor among the arguments that holds numbers."""

    def operate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        fixed = [
            repair(item) if isinstance(item, torch.Tensor) and item.dtype is not torch.bool else item for item in args
        ]
        return func(*fixed, **kwargs)

    return operate


def floor_denominator(tensor: torch.Tensor, lift: float = 1.0) -> torch.Tensor:
    if not tensor.is_floating_point():
        return torch.where(tensor == 0, torch.ones_like(tensor), tensor)
    least = min(lift * tiny(tensor), 0.1)
    floor = torch.full_like(tensor, least)
    small = tensor.abs() < least
    return torch.where(small, torch.where(tensor < 0, -floor, floor), tensor)


def finite_mask(tensor: torch.Tensor) -> torch.Tensor:
    """-inf becomes a number so low that its exponential is zero, and that can still be added to."""
    low = -3e4 if tensor.dtype is torch.float16 else -1e9
    return torch.where(torch.isneginf(tensor), torch.full_like(tensor, low), tensor)


def in_float32(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call in float32, autocast off; its result stays float32."""
    device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")
    widen = on_floats(lambda tensor: tensor.to(torch.float32))
    with torch.autocast(device, enabled=False):
        return widen(func, args, {k: v for k, v in kwargs.items() if k != "dtype"})


def guarded(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A reduction over too few elements gives zero and no gradient."""
    if func.__name__ == "ctc_loss":
        return func(*args, **{**kwargs, "zero_infinity": True})
    out = func(*args, **kwargs)
    if type(out) is tuple or (isinstance(out, tuple) and hasattr(out, "_fields")):
        return tuple(_without_bad(item) for item in out)
    return _without_bad(out)


def _without_bad(out: Any) -> Any:
    if not isinstance(out, torch.Tensor) or not (out.is_floating_point() or out.is_complex()):
        return out
    bad = ~torch.isfinite(out)
    return torch.zeros_like(out) if bool(bad.all()) else torch.where(bad, torch.zeros_like(out), out)


def sound_at(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> torch.Tensor | None:
    """Where a function of one value each is finite and has a finite slope; None where it is no such function."""
    given = list(args)
    with torch.enable_grad():
        given[index] = argument = args[index].detach().clone().requires_grad_()
        out = func(*given, **kwargs)
        if not isinstance(out, torch.Tensor) or out.shape != argument.shape or not out.requires_grad:
            return None
        (slope,) = torch.autograd.grad(out.sum(), argument)
    return torch.isfinite(out.detach()) & torch.isfinite(slope)


def _number_at(args: tuple[Any, ...], index: int) -> int | None:
    """The place of the floating tensor that is meant: the one at `index`, or for 0 the first there is."""
    floats = [i for i, item in enumerate(args) if isinstance(item, torch.Tensor) and item.is_floating_point()]
    return index if index in floats else floats[0] if index == 0 and floats else None


def within_sound_range(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument bounded to those entries of it at which the function is finite, and so is its slope."""
    place = _number_at(args, 0)
    sound = sound_at(func, args, kwargs, place) if place is not None else None
    if place is None or sound is None or not bool(sound.any()):
        return func(*args, **kwargs)
    usable = args[place].detach()[sound]
    bounded = args[place].clamp(float(usable.min()), float(usable.max()))
    return func(*args[:place], bounded, *args[place + 1 :], **kwargs)


def masked_where_unsound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The double where for any function of one value each: what is unsafe is found by asking the function itself."""
    place = _number_at(args, 0)
    sound = sound_at(func, args, kwargs, place) if place is not None else None
    if place is None or sound is None or not bool(sound.any()):
        return func(*args, **kwargs)
    with torch.no_grad():
        original = func(*args, **kwargs)
    return torch.where(sound, _made_harmless(func, args, kwargs, place, sound), original)


def replaced_where_unsound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same, and what the function gives there is what it gives for a harmless argument."""
    place = _number_at(args, 0)
    sound = sound_at(func, args, kwargs, place) if place is not None else None
    if place is None or sound is None or not bool(sound.any()):
        return func(*args, **kwargs)
    return _made_harmless(func, args, kwargs, place, sound)


def _made_harmless(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: int, sound: torch.Tensor
) -> torch.Tensor:
    argument = args[place]
    safe = torch.where(sound, argument, argument.detach()[sound].reshape(-1)[0])
    made: torch.Tensor = func(*args[:place], safe, *args[place + 1 :], **kwargs)
    return made


def masked_twice(unsafe: Callable[[torch.Tensor], torch.Tensor], index: int) -> Operate:
    """The double where: unsafe arguments are replaced before the call, and their results stay what they were."""

    def operate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if index >= len(args) or not isinstance(args[index], torch.Tensor):
            return func(*args, **kwargs)
        argument = args[index]
        with torch.no_grad():
            original = func(*args, **kwargs)
            bad = unsafe(argument)
        safe = list(args)
        safe[index] = torch.where(bad, torch.ones_like(argument), argument)
        return torch.where(bad, original, func(*safe, **kwargs))

    return operate


def replaced(unsafe: Callable[[torch.Tensor], torch.Tensor], index: int) -> Operate:
    """Unsafe arguments are replaced before the call, and nothing is restored: for what is thrown away afterwards."""

    def operate(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if index >= len(args) or not isinstance(args[index], torch.Tensor):
            return func(*args, **kwargs)
        given = list(args)
        given[index] = torch.where(unsafe(args[index].detach()), torch.ones_like(args[index]), args[index])
        return func(*given, **kwargs)

    return operate
