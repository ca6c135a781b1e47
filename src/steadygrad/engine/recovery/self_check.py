"""`self_check="1%"`: why a step that was computed twice gave two results: an operation, a kernel, or the machine.

The step's operations are run again three times, forward and backward, each compared with the first run by what went in
and what came out. An operation that makes another result of the same input, within rounding of its float64 result on
the CPU, is non-deterministic; one that is far from it again and again is a kernel that computes wrongly. If nothing
differs any more, it was the machine. Everything is as before the step when this returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.torch_private import TorchDispatchMode, tree_flatten, tree_map
from ...records.rerun_flag import rerun
from ..state.rng import put_rng
from ..step.numerics_findings import muted
from .reruns.reached_state import reached_state_kept
from .reruns.sinks import HasEffect

if TYPE_CHECKING:
    from ..engine import Step
    from ..owned_loop import OwnedLoop

_RUNS = 3
_FAR = {torch.float32: 1e-2, torch.float64: 1e-6}
"""A result this far from float64, as a share of its largest value, is no rounding; of other types a fifth."""
_DRAWS = ("rand", "normal", "bernoulli", "dropout", "multinomial", "uniform", "exponential")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What made two results: `kind` is one of "operation", "random", "kernel", "machine", "unknown"; `op` names it."""

    kind: str
    because: str
    op: str | None = None


class SelfCheck:
    """Says which steps are computed twice, and explains two results. One per guard."""

    def __init__(self, loop: OwnedLoop) -> None:
        self._loop = loop
        self._every = loop.config.steps_between_self_checks
        self.noise = 0.0
        """How far two norms may be apart; more once a non-deterministic operation is known."""
        if self._every and (why := _why_not(loop)) is not None:
            self._every = 0
            loop.log.show_once(f"self_check: not possible here: {why}")

    def due(self, step: int) -> bool:
        return bool(self._every) and step % self._every == self._every - 1

    def explain(self, step: Step) -> Verdict:
        """Run the operations of the step again. Reads the device."""
        try:
            with reached_state_kept(self._loop.program, self._loop.parts.state):
                return self._explained(step)
        except HasEffect as effect:
            self._loop.recovery.second_look.put_back(step.window)
            self._loop.program.forget()
            return Verdict("unknown", f"not known why: running the step again would have an effect: {effect}")

    def _explained(self, step: Step) -> Verdict:
        first = self._trace(step, None)
        odd = [trace.odd for _ in range(_RUNS - 1) if (trace := self._trace(step, first.seen)).odd is not None]
        device, rank = self._loop.program.device, self._loop.log.rank
        if not odd:
            return Verdict("machine", f"it repeats now, so it was the machine ({device}, rank {rank})")
        op, far = odd[0].op, [each.far for each in odd]
        if any(word in op for word in _DRAWS):
            return Verdict("random", f"{op} draws from a generator that is not restored; pass it as extra_state=", op)
        if all(far) and len(far) == _RUNS - 1:
            return Verdict("kernel", f"the kernel of {op} is far from its float64 result ({device}, rank {rank})", op)
        if any(far):
            return Verdict("machine", f"{op} was far from its float64 result once ({device}, rank {rank})", op)
        self.noise = 0.05
        repeats = self._repeats_if_deterministic(step)
        note = "repeats" if repeats else "does not repeat either"
        return Verdict(
            "operation", f"{op} is non-deterministic; with torch.use_deterministic_algorithms the step {note}", op
        )

    def _repeats_if_deterministic(self, step: Step) -> bool:
        before = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            return self._trace(step, self._trace(step, None).seen).odd is None
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warns)

    def _trace(self, step: Step, reference: Sequence[tuple[str, int, int]] | None) -> _OpTrace:
        loop, window = self._loop, step.window
        loop.recovery.second_look.put_back(window)
        trace = _OpTrace(reference)
        with muted(), rerun(), trace:
            for batch, rng in zip(window.batches, loop.recovery.rngs_of(window.fed), strict=True):
                if rng is not None:
                    put_rng(rng)
                loop.program.micro(batch)
        loop.recovery.second_look.put_back(window)
        loop.program.forget()
        return trace


def _why_not(loop: OwnedLoop) -> str | None:
    if loop.config.outside:
        return "the trainer runs its own steps, and what it does around them is not known here"
    if loop.consensus.size > 1:
        return "one of several ranks cannot run a step again by itself"
    return None if loop.config.policy.acts else "the policy only observes"


@dataclass(frozen=True, slots=True)
class _Odd:
    op: str
    far: bool


class _OpTrace(TorchDispatchMode):
    """Writes down what went into each operation and what came out; stops comparing at the first that differs."""

    def __init__(self, reference: Sequence[tuple[str, int, int]] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, int, int]] = []
        self.odd: _Odd | None = None
        self._reference, self._lost = reference, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        given = _digest((args, kwargs))
        kept = tree_map(_copied, (args, kwargs)) if self._reference is not None and not self._lost else None
        out = func(*args, **kwargs)
        here = (name, given, _digest((out, args)))
        place = len(self.seen)
        self.seen.append(here)
        if self._reference is not None and not self._lost:
            there = self._reference[place] if place < len(self._reference) else None
            if there != here:
                self._lost = True
                if there is not None and there[:2] == here[:2]:
                    self.odd = _Odd(name, _far_from_float64(func, kept, out))
        return out


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _digest(tree: Any) -> int:
    """One number for the bits of all tensors in it; what has no plain memory counts as its shape."""
    total = 0
    for place, value in enumerate(tree_flatten(tree)[0]):
        if isinstance(value, Tensor):
            total = hash((total, place, tuple(value.shape), _digest_of(value)))
    return total


@torch.no_grad()
def _digest_of(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or not tensor.numel() or tensor.is_complex():
        return 0
    flat = tensor.detach().contiguous().view(-1)
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]).long()
    weights = torch.arange(bits.numel(), device=bits.device) % 8191 + 1
    return int((bits * weights).sum())


@torch.no_grad()
def _far_from_float64(func: Callable[..., Any], kept: Any, out: Any) -> bool:
    """Whether the result is beyond rounding away from the same operation on the CPU in float64. False if unknown."""

    def wide(value: Any) -> Any:
        if isinstance(value, Tensor):
            value = value.cpu()
            return value.double() if value.is_floating_point() else value
        return torch.device("cpu") if isinstance(value, torch.device) else value

    try:
        args, kwargs = tree_map(wide, kept)
        exact = func(*args, **kwargs)
    except Exception:  # an operation that has no form on the CPU or in float64
        return False
    for got, right in zip(tree_flatten(out)[0], tree_flatten(exact)[0], strict=False):
        if isinstance(got, Tensor) and isinstance(right, Tensor) and got.is_floating_point() and got.numel():
            gap = float((got.cpu().double() - right).abs().max())
            if not gap <= _FAR.get(got.dtype, 0.2) * max(float(right.abs().max()), 1e-12):
                return True
    return False
