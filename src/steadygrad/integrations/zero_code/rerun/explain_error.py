"""An error that ends the program and never mentions the value behind it: look for it where the error was raised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ....detect.tensors.foreign_objects import is_tensor, isinstance
from ....detect.tensors.readable_tensors import has_values
from ....diagnosis.locate.crash_origin import explain_crash, has_no_solution, near_a_nan
from ....engine.recovery.reruns.side_effects import HasEffect
from ....engine.recovery.reruns.user_state import is_users
from ....records import Diagnosis, Reading
from ....records.errors import SteadyError
from ....reporters.run_data.counted import counted
from ...optimizer.optimizer_loop import OptimizerLoop
from ..hooks.loader_batches import with_samples
from .loop_step import LoopStep
from .rerunnable_parts import RerunnableParts

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop

_OURS = str(Path(__file__).resolve().parents[3])
_TORCH = (str(Path(torch.__file__).resolve().parent), str(Path(torch.__file__).parent))
"""Where torch lies, with and without links: an environment may be one."""
_MAX_LOCALS = 64
_MAX_ELEMENTS = 1 << 26


def explain(watch: ProcessLoop, error: BaseException) -> None:
    """Name the bad value behind an error that ends the program, in the error itself and in an incident: that of a loss
    which the program had and raised about, or one of the error."""
    before = watch.ledger.num_incidents
    watch.batches.tables.ended = watch.slices.ended = _frames_of(error)
    try:
        watch.events.finished(error)
        _explain(watch, error, known=watch.ledger.num_incidents > before)
    finally:
        watch.batches.tables.ended = watch.slices.ended = ()


def _explain(watch: ProcessLoop, error: BaseException, *, known: bool) -> None:
    bad_value = _sentence_on(error)
    if bad_value is None and not has_no_solution(error):
        return
    found: Diagnosis | None = None
    optimizer = watch.optimizers.trainer_of(*(call.module for call in watch.models.calls))
    if optimizer is not None and watch.alone and not known:
        loop = watch.loop_of(optimizer)
        depth = {"auto": "full", "origin": "origin"}.get(watch.settings.diagnose)
        found = _diagnosis(watch, loop, error, depth) if depth is not None else None
        if found is not None:
            loop.log.enter_crash(watch.step, watch.examiner.batch_key, error)
            loop.log.enter_diagnosis(found)
    sentence = _with_origin(bad_value, found)
    if sentence is None:
        return
    error.add_note(f"steadygrad: {sentence}")
    watch.ledger.crashes.append(sentence)
    watch.ledger.event("crash", error=type(error).__name__, sentence=sentence)


def _with_origin(bad_value: str | None, found: Diagnosis | None) -> str | None:
    """What is said of an error: the bad value near it and where that was made, or the operation whose matrix has no
    solution; None where neither is known."""
    origin = found.origin if found is not None and found.origin is not None and found.origin.op is not None else None
    where = f"{origin.op} ({origin.source or origin.module or origin.phase})" if origin is not None else ""
    if bad_value is None:
        return f"{where} was given a matrix that is singular or not positive definite" if where else None
    made = f"; the first bad value was made by {where}" if where else ""
    return f"{bad_value}{made}. The error may be a consequence of that."


def _frames_of(error: BaseException) -> list[FrameType]:
    """The program's own functions that this error has ended, innermost first."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return [frame for frame in reversed(frames) if is_users(frame.f_code.co_filename)]


def _sentence_on(error: BaseException) -> str | None:
    """One sentence on the non-finite value near this error, or None if there is none. Reads the device."""
    if isinstance(error, SteadyError) or not near_a_nan(error):
        return None
    seen = next(_bad_locals(error.__traceback__), None)
    if seen is None:
        return "a value that is not finite was being worked on where this error was raised"
    return f"where this error was raised, {seen}"


def _bad_locals(trace: TracebackType | None) -> Iterator[str]:
    """Non-finite tensors among the local variables of the program's own frames, innermost frame first."""
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    for frame, line in reversed(frames):
        file = frame.f_code.co_filename
        if file.startswith((_OURS, *_TORCH, "<frozen", "<string", "<__array")):
            continue
        for name, value in list(frame.f_locals.items())[:_MAX_LOCALS]:
            if not is_tensor(value) or not has_values(value) or not value.is_floating_point():
                continue
            if not 0 < value.numel() <= _MAX_ELEMENTS:
                continue
            nans, infinities = int(torch.isnan(value.detach()).sum()), int(torch.isposinf(value.detach()).sum())
            if nans or infinities:
                bad = f"{nans} NaN" if nans else f"{infinities} infinities"
                yield f"`{name}` ({file}:{line}) holds {bad} among its {counted(value.numel(), 'value')}"


def _diagnosis(watch: ProcessLoop, loop: OptimizerLoop, error: BaseException, depth: str) -> Diagnosis | None:
    """Where the bad value behind this error was made; None if that cannot be shown. The program is ending."""
    examiner, reading = watch.examiner, Reading(step=watch.step, loss=math.nan, grad_norm=math.nan, refused=True)
    examiner.look_at_batch()
    found: Diagnosis | None = None
    with examiner.in_time(loop):
        found = _by_lines(watch, loop, reading, error, depth)
        if found is None:
            with suppress(HasEffect):
                found = examiner.crashed_in_calls(loop, reading, error, depth)
    if found is not None and found.rows and examiner.found is not None:
        found = with_samples(found, examiner.found)
    return found


def _by_lines(
    watch: ProcessLoop, loop: OptimizerLoop, reading: Reading, error: BaseException, depth: str
) -> Diagnosis | None:
    """By the loop's own lines, as they are known from other rounds: they raise the same error again."""
    with _lines_again(watch, loop, reading) as (replayable, again):
        if replayable is None or type(again) is not type(error):
            return None
        return explain_crash(replayable, error, depth=depth)


def why_left_out(watch: ProcessLoop) -> str | None:
    """Why the program left out a round whose loss is in no variable: the name of the error that its lines raise about a
    non-finite value, "" where they give a loss that is not finite, None where nothing of it can be shown."""
    optimizer = watch.optimizers.trainer_of(*(call.module for call in watch.models.calls))
    if optimizer is None or not watch.alone or watch.busy:
        return None
    watch.busy = True
    try:
        reading = Reading(step=watch.step, loss=math.nan, grad_norm=math.nan, refused=True)
        loop, given = watch.loop_of(optimizer), None
        with watch.examiner.in_time(loop), _lines_again(watch, loop, reading) as (_, came):
            given = came
        if isinstance(given, Tensor):
            return None if bool(torch.isfinite(given)) else ""
        return type(given).__name__ if given is not None and near_a_nan(given) else None
    finally:
        watch.busy = False


@contextmanager
def _lines_again(
    watch: ProcessLoop, loop: OptimizerLoop, reading: Reading
) -> Iterator[tuple[LoopStep | None, Tensor | Exception | None]]:
    """Run the lines of a round whose backward has not come again, without effects: the step, and the loss that they
    give or the error that they raise; None where they cannot be run."""
    loop_pass = watch.slices.unfinished()
    if loop_pass is None or loop_pass.overwritten:
        yield None, None
        return
    replayable = RerunnableParts(watch, loop, reading, watch.state_of(loop), "nan_loss").replayable([loop_pass])
    given: Tensor | Exception | None = None
    try:
        with replayable.examining():
            replayable.restore()
            try:
                with replayable.supervised(loop_pass.noted()):
                    given = replayable.forward(replayable.batches[0])["loss"].detach()
            except HasEffect:
                pass
            except Exception as again:  # the program's own error
                given = again
        yield replayable, given
    finally:
        replayable.release()
