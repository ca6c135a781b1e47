"""The loop's own lines from the model's call to backward, kept for each micro-batch so that they can be run again.

At the model's first call the stack is walked up once; at backward it is walked again, and the nearest frame that is in
both is the loop's. Its lines between the two are cut out the first time (see `loop_slice`) and from then on the names
they read are remembered as they are when the model is first called. Host work only: a dictionary of a few names.

Where no model's call is heard (bare parameters), or the call and backward have no code in common, the places of the
program that led to backward are noted; if the step is refused, their lines are cut out then.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from ....detect.loop.program_frames import line_of, living, variables_of
from ....detect.tensors.foreign_objects import is_tensor
from ....detect.tensors.kept_content import ContentMarks, marks_of
from ....engine.recovery.reruns.quiet import quiet
from ....engine.recovery.reruns.user_state import LargeTables, TakenValues, UserState, is_data, is_users
from ....engine.state.kept_bytes import KeptBytes, Piece, fit, pieces_of
from ....engine.state.rng import RngState, put_rng, take_rng
from ...loops.after_backward import LinesAfter, lines_after, lines_before, no_loss
from ...loops.batch_names import bind_batch
from ...loops.loop_slice import LoopSlice, cut, handles_errors, loops_around, stopped_at_return
from ...loops.sliced_batches import with_named_batches
from ..hooks.call_log import Call, as_leaves, autocast_now

_MAX_DEPTH = 60
_MAX_PLAYS = 64
_MAX_PLACES = 6
_KEPT_BEFORE = 2


@dataclass(slots=True)
class LoopPass:
    """One micro-batch's lines with the values they read."""

    slice: LoopSlice
    taken: Mapping[str, Any]
    module_globals: dict[str, Any]
    rng: RngState
    autocast: dict[str, torch.dtype]
    loss: Tensor
    """What backward was called on, without its graph."""
    marks: ContentMarks | None
    passes: int = 0
    """How many backwards of another loss these lines make before theirs."""
    rng_before: RngState | None = None
    """The random numbers after the update before: a line like `model(torch.randn(8))` draws between."""
    inside: tuple[CodeType, str] | None = None
    """A function that these lines call and its variable that is the loss, where the function did not return it."""
    generators: tuple[tuple[torch.Generator, Tensor], ...] = ()
    """Generators of the program's own, where their states at the beginning of the lines are known."""
    pieces: Mapping[Piece, int] = field(default_factory=dict)
    """The memory that it keeps alive, without what the lines read at the time before as well."""
    _batch: dict[str, Any] | None = field(default=None, init=False, repr=False)

    def without_loss(self, instead: Tensor) -> LoopPass:
        """The same lines and values for keeping, with another tensor in place of the loss."""
        kept = object.__new__(LoopPass)  # `copy.copy(self)`, but fast: there is one for each update
        for name in LoopPass.__slots__:
            setattr(kept, name, getattr(self, name))
        kept.loss = instead
        return kept

    def __post_init__(self) -> None:
        if type(self.taken) is not TakenValues:  # asked of its type, for that of a mapping is an abstract one
            self.taken = TakenValues(self.taken)

    def with_named_batches(self) -> LoopPass:
        """The same lines, reading their batches by name where they cut them out of larger tensors themselves."""
        # An index that was written to since may lie outside by now, which ends a process on a GPU.
        named = None if self.overwritten else with_named_batches(self.slice, self.taken)
        if named is None:
            return self
        loop_pass = replace(self, slice=named[0], taken=named[1])
        loop_pass.marks = marks_of(loop_pass.batch)
        return loop_pass

    @property
    def earlier(self) -> LoopPass | None:
        """The same lines with the random numbers from before anything of this round was drawn."""
        return replace(self, rng=self.rng_before) if self.rng_before is not None else None

    @property
    def overwritten(self) -> bool:
        """Whether the tensors that were read were written to since."""
        return self.marks is not None and self.marks != marks_of(self.batch)

    @property
    def batch(self) -> dict[str, Any]:
        """Of the values read, those that hold tensors and are not a model: the batch, and what goes with it."""
        if self._batch is None:
            taken = self.taken.now() if isinstance(self.taken, TakenValues) else self.taken
            self._batch = {name: value for name, value in taken.items() if is_data(value)}
        return self._batch

    def kept(self) -> list[Any]:
        """The values that are kept alive."""
        return self.taken.kept() if isinstance(self.taken, TakenValues) else list(self.taken.values())

    def noted(self, tables: LargeTables | None = None) -> UserState:
        """The program's own objects that the lines can reach, as they are now."""
        return UserState(self.taken.values(), [self.module_globals], tables)

    def again(self, batch: Mapping[str, Any], state: UserState) -> Tensor:
        """The loss by the loop's own lines, with their random numbers and precision. Prints nothing, and what the lines
        count, append or assign is undone; see `effects` for what else. `state` is what they can reach, as it is now."""
        put_rng(self.rng)
        for generator, before in self.generators:
            generator.set_state(before)
        names = {name: as_leaves(value) for name, value in {**self.taken, **batch}.items()}
        graphs = {name: as_leaves(v) for name, v in self.module_globals.items() if is_tensor(v)}
        try:
            with ExitStack() as stack, torch.enable_grad(), quiet():
                for device, dtype in self.autocast.items():
                    stack.enter_context(torch.autocast(device, dtype=dtype))
                if self.inside is not None:
                    stack.enter_context(stopped_at_return(*self.inside))
                return self.slice.run({**graphs, **names}, self.module_globals, self.passes)
        finally:
            state.restore()


@dataclass(slots=True)
class ReachedBackward:
    """One backward whose lines are not known: the program's functions it was called from, innermost first."""

    places: tuple[tuple[CodeType, int], ...]
    rng: RngState
    autocast: dict[str, torch.dtype]
    loss: Tensor
    rng_before: RngState | None = None


class LoopLines:
    """Listens at the model's calls and at backward. `loop_passes` are those since the last update."""

    def __init__(self) -> None:
        self.loop_passes: list[LoopPass] = []
        self.reached: list[ReachedBackward] = []
        """The backwards since the last update, for lines that are cut out only when they are needed."""
        self.before: list[list[LoopPass]] = []
        """The same of the last updates before, oldest first: for following a remedy a little further."""
        self.why_not: str | None = None
        """Why the last micro-batch could not be kept, as a clause."""
        self.ended: Sequence[FrameType] = ()
        """Functions that an error has ended, for the time in which it is explained."""
        self._known: dict[tuple[int, int, int], tuple[CodeType, LoopSlice | str]] = {}
        self._by_start: dict[int, dict[int, list[LoopSlice]]] = {}
        """The lines that begin at a model's call: by the code, which they keep alive, and the line."""
        self._seen: dict[int, tuple[FrameType, int]] = {}
        """The running functions by identity, each with its instruction: to find its line takes longer."""
        self._early: dict[int, dict[str, Any]] = {}
        self._rng: RngState | None = None
        self._rng_before: RngState | None = None
        self._rounds: dict[int, tuple[int, tuple[Any, ...]]] = {}
        self._judged = self._rng_taken = False
        self._read: dict[int, weakref.ref[Any]] = {}
        self._window = KeptBytes()

    def called(self, call: Call) -> None:
        """A model is called. Only the first call of a micro-batch matters."""
        if self._seen:
            return
        self._rng = call.rng
        frame: FrameType | None = sys._getframe(1)
        seen, starts = self._seen, self._by_start
        for _ in range(_MAX_DEPTH):
            if frame is None:
                break
            seen[id(frame)] = (frame, frame.f_lasti)
            if id(frame.f_code) in starts:
                line = frame.f_lineno
                for known in starts[id(frame.f_code)].get(line, ()):
                    self._early.setdefault(id(frame), {}).update(known.take(frame))
                    self._rounds[id(frame)] = (line, _round(known, frame))
            frame = frame.f_back

    def backward_begins(self, loss: Tensor) -> None:
        """Backward is called on a loss."""
        seen, early, rng, rounds = self._seen, self._early, self._rng, self._rounds
        self._start_over()
        if len(self.reached) >= _MAX_PLAYS and not self._judged:
            self.why_not = "backward was called too often for one update"
            return
        if self._judged:
            self._roll()  # no model's call was heard since the last update
        here, value, autocast, before = sys._getframe(1), loss.detach(), autocast_now(), self._rng_before
        self._rng_before = None  # a later micro-batch of this update: what was drawn before it is not known
        began = rng if rng is not None else take_rng()
        self.reached.append(ReachedBackward(_places(here), began, autocast, value, before))
        if not seen or rng is None:
            self.why_not = "the model was not called before backward"
            return
        frame, left = here, _MAX_DEPTH
        while left and frame.f_back is not None and id(frame) not in seen:
            frame, left = frame.f_back, left - 1
        if id(frame) not in seen:
            self.why_not = "the model's call and backward have no code in common"
            return
        called_at = rounds[id(frame)][0] if id(frame) in rounds else line_of(*seen[id(frame)])
        key = (id(frame.f_code), called_at, frame.f_lineno)
        if key not in self._known:
            made = cut(frame, key[1], key[2])
            self._known[key] = frame.f_code, made
            if not isinstance(made, str):
                self._by_start.setdefault(key[0], {}).setdefault(key[1], []).append(made)
        found = self._known[key][1]
        if isinstance(found, str):
            self.why_not = found
            return
        taken = early.get(id(frame), {})
        if not all(map(taken.__contains__, found.reads)):
            taken = {**found.take(frame), **taken}
        loop_pass = LoopPass(found, taken, frame.f_globals, rng, autocast, value, None, rng_before=before)
        loop_pass.marks = marks_of(loop_pass.batch)
        self._keep(loop_pass)

    def _keep(self, loop_pass: LoopPass) -> None:
        """Keep a micro-batch's lines as long as all of its update may be kept."""
        loop_pass.pieces = self._new_pieces(loop_pass)
        self._window.add(loop_pass.pieces)
        self.why_not = None
        if len(self.reached) > 1 and self._window.too_many:
            self.loop_passes, self.why_not = [], "the micro-batches of one update take too much memory to be kept"
        else:
            self.loop_passes.append(loop_pass)

    def _new_pieces(self, loop_pass: LoopPass) -> Mapping[Piece, int]:
        """What the lines read and did not read the last time: that is the program's own, and there anyway."""
        before, self._read, new = self._read, {}, []
        for value in loop_pass.kept():
            known = before.get(id(value))
            if known is not None and known() is value:
                self._read[id(value)] = known
                continue
            new.append(value)
            with suppress(TypeError):  # plain lists and the like
                self._read[id(value)] = weakref.ref(value)
        return pieces_of(new)

    def next_round(self) -> bool:
        """Whether the model's call that is being made belongs to a new round of the loop, although no backward came
        since the last round's call: what the loops around it count or go through has changed, or the function that
        makes a step was called again."""
        if not self._rounds:
            return False
        begun = {(id(self._seen[key][0].f_code), line): key for key, (line, _) in self._rounds.items()}
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_MAX_DEPTH):
            if frame is None:
                return False
            key = begun.get((id(frame.f_code), frame.f_lineno))
            if key is not None and key != id(frame):
                return True  # the function that makes a step was called again
            if key is not None:
                known = self._by_start[id(frame.f_code)][frame.f_lineno][-1]
                pairs = zip(_round(known, frame), self._rounds[key][1], strict=False)
                return any(a is not b and not _same(a, b) for a, b in pairs)
            frame = frame.f_back
        return False

    @property
    def is_open(self) -> bool:
        """Whether a model was called and its backward has not come yet."""
        return bool(self._seen)

    def open_frames(self) -> list[FrameType]:
        """The program's functions that called a model whose backward has not come, innermost first."""
        return [frame for frame, _ in self._seen.values() if is_users(frame.f_code.co_filename)]

    @property
    def handles_errors(self) -> bool:
        """Whether the program would handle an error of the lines that called a model whose backward has not come."""
        seen = [each for each in self._seen.values() if is_users(each[0].f_code.co_filename)]
        return any(handles_errors(frame.f_code, line_of(frame, place)) for frame, place in seen)

    def skipped(self, loss: Tensor) -> bool:
        """The loop went on without backward: keep the lines up to where other rounds call it. False if not known."""
        loop_pass = self.unfinished(loss)
        if loop_pass is None:
            return False
        self.loop_passes = [loop_pass]
        self.reached = [
            ReachedBackward(((loop_pass.slice.owner, loop_pass.slice.last_line),), loop_pass.rng, {}, loop_pass.loss)
        ]
        self._start_over()
        return True

    def unfinished(self, loss: Tensor | None = None) -> LoopPass | None:
        """The lines of a round whose backward has not come, up to where it is called in other rounds."""
        value = torch.tensor(math.nan) if loss is None else loss.detach()
        for frame, place in self._seen.values():
            early, starts = self._early.get(id(frame)), self._by_start.get(id(frame.f_code), {})
            for known in starts.get(line_of(frame, place), ()) if starts else ():
                if early is not None and self._rng is not None:
                    loop_pass = LoopPass(known, early, frame.f_globals, self._rng, autocast_now(), value, None)
                    loop_pass.rng_before = self._rng_before
                    loop_pass.marks = marks_of(loop_pass.batch)
                    loop_pass.inside = self._kept_inside(frame, loss)
                    return loop_pass
        return None

    def _kept_inside(self, loop: FrameType, loss: Tensor | None) -> tuple[CodeType, str] | None:
        """The function called by the loop whose variable this loss is; None where the loop itself has it."""
        if loss is None or any(value is loss for value in variables_of(loop).values()):
            return None
        for frame in self.open_frames():
            for name, value in variables_of(frame).items():
                if value is loss and frame is not loop:
                    return frame.f_code, name
        return None

    def _start_over(self) -> None:
        self._seen, self._early, self._rng, self._rounds = {}, {}, None, {}

    def variants(self, handed: Any) -> Iterator[tuple[str, list[LoopPass]]]:
        """Further ways to run the last update's lines again, each with what is said of it: whole loop bodies, which
        prepare the batch as well. `handed` is the batch that the loader gave last. Needs the loop's frames."""
        if self.loop_passes and len(self.loop_passes) == len(self.reached):
            for effects in (False, True):
                longer = [self._longer(loop_pass, handed, with_effects=effects) for loop_pass in self.loop_passes[-1:]]
                if len(self.loop_passes) == 1 and longer[0] is not None:
                    yield "body", [longer[0]]
            same = [self._with_effects(loop_pass) for loop_pass in self.loop_passes]
            if all(loop_pass is not None for loop_pass in same):
                yield "effects", [loop_pass for loop_pass in same if loop_pass is not None]
        if len(self.reached) == 1:
            yield from (("body", [loop_pass]) for loop_pass in _tails(self.reached[0], handed, self.ended))

    def from_earlier_call(self) -> Iterator[LoopPass]:
        """The last backward's lines from the first call of the window before: a generator's output is made for the
        discriminator's update, and used again after it."""
        if len(self.reached) != 1 or not self.before:
            return
        earlier, places = self.before[-1], dict(reversed(self.reached[0].places))
        first = earlier[0]
        frame, line = living(first.slice.owner, self.ended), places.get(first.slice.owner)
        if frame is None or line is None or first.overwritten:
            return
        found = cut(frame, first.slice.first_line, line, with_effects=True)
        if isinstance(found, str):
            return
        loop_pass = replace(first, slice=found, taken={**found.take(frame), **first.taken}, loss=self.reached[0].loss)
        loop_pass.marks = marks_of(loop_pass.batch)
        for passes in sorted({0, len(earlier)}):
            yield replace(loop_pass, passes=passes)

    def _longer(self, loop_pass: LoopPass, handed: Any, *, with_effects: bool) -> LoopPass | None:
        """The same play from the beginning of its loop's body, on the loader's batch."""
        frame, line = living(loop_pass.slice.owner, self.ended), loop_pass.slice.last_line
        places = self.reached[-1].places if self.reached else ()
        from_start = (loop_pass.slice.owner, line, True) in _up_to_loop(places)
        found: LoopSlice | str = ""
        if frame is not None:
            found = cut(frame, None, line, with_effects=with_effects, from_start=from_start)
        if frame is None or isinstance(found, str) or found.first_line >= loop_pass.slice.first_line:
            return None
        return _bound(replace(loop_pass, slice=found), {**found.take(frame), **loop_pass.taken}, handed)

    def _with_effects(self, loop_pass: LoopPass) -> LoopPass | None:
        frame = living(loop_pass.slice.owner, self.ended)
        if frame is None:
            return None
        found = cut(frame, loop_pass.slice.first_line, loop_pass.slice.last_line, with_effects=True)
        if isinstance(found, str):
            return None
        return replace(loop_pass, slice=found, taken={**found.take(frame), **loop_pass.taken})

    def after_backward(self, loop_pass: LoopPass) -> LinesAfter | None:
        """The lines between this backward and the update that is being made, where one function has both."""
        frame, line = living(loop_pass.slice.owner, self.ended), loop_pass.slice.last_line
        return lines_after(frame, line, frame.f_lineno) if frame is not None and frame.f_lineno > line else None

    def before_update(self) -> Iterator[tuple[LoopPass, LinesAfter]]:
        """The lines before the update that is being made, where no backward came: shorter runs first, each with a pass
        that computes nothing, to be run after."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or self.reached or not loops_around(frame.f_code, frame.f_lineno):
            return
        nothing = no_loss(frame)
        for lines in lines_before(frame, frame.f_lineno):
            data = {name: value for name, value in lines.taken.items() if name in lines.given and is_data(value)}
            taken = {"torch": torch, **data}
            yield LoopPass(nothing, taken, {}, take_rng(), {}, torch.zeros(()), None), lines

    def judged(self) -> None:
        """An update was judged: what comes next is not part of it."""
        self._judged = True

    def updated(self, *, issued: bool = False, refused: bool = False) -> None:
        """An update was made or withheld, or is under way on a device (`issued`): the next round begins."""
        if issued or refused or not self._rng_taken:
            self._rng_before = take_rng()
        self._rng_taken = issued

    def forget(self) -> None:
        """A new window begins."""
        self._roll()
        self._start_over()

    def let_go(self) -> None:
        """Keep nothing of earlier rounds alive."""
        self.forget()
        self.before, self._read = [], {}

    def _roll(self) -> None:
        if self.loop_passes:
            self.before = [*self.before[1 - _KEPT_BEFORE :], self.loop_passes]
            self.loop_passes = []
            while self.before and not fit([each.pieces for passes in self.before for each in passes]):
                del self.before[0]
        self.reached, self._judged = [], False
        self._window.clear()


def _tails(reached: ReachedBackward, handed: Any, ended: Sequence[FrameType]) -> Iterator[LoopPass]:
    """The lines that led to backward: of the innermost function with a loop around it, from the beginning of the loop's
    body, and of the functions that this loop calls, from their beginning. Nothing further out is run again."""
    for code, line, from_start in _up_to_loop(reached.places):
        frame = living(code, ended)
        found = cut(frame, None, line, from_start=from_start) if frame is not None else ""
        if frame is None or isinstance(found, str):
            continue
        loop_pass = LoopPass(found, {}, frame.f_globals, reached.rng, reached.autocast, reached.loss, None)
        loop_pass.rng_before = reached.rng_before
        bound = _bound(loop_pass, found.take(frame), handed)
        if bound is not None:
            yield bound


def _up_to_loop(places: tuple[tuple[CodeType, int], ...]) -> list[tuple[CodeType, int, bool]]:
    """The functions from backward out to the first with a loop, if any, and whether each is run from its beginning."""
    found: list[tuple[CodeType, int, bool]] = []
    for code, line in places:
        if code.co_name == "<module>" and not loops_around(code, line):
            return []
        looped = loops_around(code, line)
        found.append((code, line, not looped))
        if looped:
            return found
    return []


def _bound(loop_pass: LoopPass, taken: dict[str, Any], handed: Any) -> LoopPass | None:
    """A play with its values, and with the names of its batch as the loader gave them."""
    names = loop_pass.slice.batch_names
    if names and handed is not None:
        batch = bind_batch(names, handed)
        if batch is not None:
            taken = {**taken, **batch}
    bound = replace(loop_pass, taken=taken)
    bound.marks = marks_of(bound.batch)
    return bound


def _places(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    found: list[tuple[CodeType, int]] = []
    for _ in range(_MAX_DEPTH):
        if frame is None or len(found) == _MAX_PLACES:
            break
        if is_users(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _round(known: LoopSlice, frame: FrameType) -> tuple[Any, ...]:
    """What the loops around some lines are at. Tensors and numbers; nothing is copied."""
    values = variables_of(frame, known.loop_names) if known.loop_names else {}
    return tuple(map(values.get, known.loop_names))


def _same(a: Any, b: Any) -> bool:
    """Whether two values of a loop's variable are the same number or text; of anything else only itself is the same."""
    return issubclass(type(a), int | float | str) and issubclass(type(b), int | float | str) and a == b
