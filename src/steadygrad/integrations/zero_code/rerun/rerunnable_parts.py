"""Which parts of a loop can be run again for a refused step, in the order in which they are tried."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ....detect.loop.program_frames import living
from ....detect.tensors.kept_content import marks_of
from ....detect.tensors.nested_tensors import first_tensor_in, tensors_in
from ....detect.tensors.readable_tensors import describable, has_values
from ....diagnosis.replay.replayable import StepFacts
from ....engine.state.rng import same_rng
from ....engine.state.training_state import TrainingState
from ....records import Diagnosis, Reading
from ...loops.after_backward import computed_before, cut_before
from ...loops.batch_names import bind_batch
from ...optimizer.optimizer_loop import OptimizerLoop
from ..hooks.loader_batches import ROWS
from .earlier_loop_step import look_back
from .loop_lines import LoopPass
from .loop_step import LoopStep, rows_of_loop_pass

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop

_MAX_ATTEMPTS = 6


class RerunnableParts:
    """One refused step of a watched program."""

    def __init__(
        self, watch: ProcessLoop, loop: OptimizerLoop, reading: Reading, state: TrainingState, symptom: str
    ) -> None:
        self._watch, self._loop, self._reading, self._state, self._symptom = watch, loop, reading, state, symptom

        self.made_before = False
        """Whether the lines of the first attempt hang on calls that were made before them."""
        self._last_lines: LoopPass | None = None

    def attempts(self) -> Iterator[list[LoopPass]]:
        """The lines from the model's call first, then longer parts of the loop on the batches of its loader, and last
        the lines before backward from what they read."""
        yield from self._from_call()
        self._last_lines = self._from_values()
        if self._last_lines is not None:
            yield [self._last_lines]

    def _from_values(self) -> LoopPass | None:
        """The fewest lines before backward that make a loss non-finite of finite values, which are still there: where
        what comes before them cannot be run again, such as the steps of a world."""
        slices = self._watch.slices
        reached = slices.reached[0] if len(slices.reached) == 1 and slices.reached[0].places else None
        frame = living(reached.places[0][0], slices.ended) if reached is not None else None
        if reached is None or frame is None or bool(torch.isfinite(reached.loss).all()):
            return None
        for lines in cut_before(frame, reached.places[0][1]):
            taken = lines.take(frame)
            if all(bool(torch.isfinite(tensor.detach()).all()) for tensor in tensors_in(taken) if has_values(tensor)):
                found = LoopPass(lines, taken, frame.f_globals, reached.rng, reached.autocast, reached.loss, None)
                found.marks = marks_of(found.batch)
                return found
        return None

    def _from_call(self) -> Iterator[list[LoopPass]]:
        slices = self._watch.slices
        count = 0
        if slices.loop_passes and len(slices.loop_passes) == len(slices.reached):
            count += 1
            if not any(loop_pass.overwritten for loop_pass in slices.loop_passes):
                yield list(slices.loop_passes)
                yield from _with_earlier_numbers(slices.loop_passes)
                yield from self._with_rewound_generators(slices.loop_passes)
        if self.made_before:
            yield from ([loop_pass] for loop_pass in slices.from_earlier_call())
        tried: set[tuple[Any, ...]] = set()
        for handed in [*reversed(self._watch.batches.recent), None]:
            for _, loop_passes in slices.variants(handed):
                key = tuple(
                    (loop_pass.slice.code.co_code, loop_pass.slice.first_line, _ids(loop_pass.batch))
                    for loop_pass in loop_passes
                )
                if key in tried or any(loop_pass.overwritten for loop_pass in loop_passes):
                    continue
                tried.add(key)
                count += 1
                if count > _MAX_ATTEMPTS:
                    return
                yield from _with_earlier_numbers(loop_passes)
                yield loop_passes

    def _with_rewound_generators(self, loop_passes: Sequence[LoopPass]) -> Iterator[list[LoopPass]]:
        """The lines as they drew from generators that the program keeps itself."""
        replayable = self.replayable(loop_passes)
        try:
            rewound = replayable.rewound()
        finally:
            replayable.release()
        if rewound is not None:
            yield rewound

    def was_given_good(self) -> bool:
        """Whether no batch that the loader gave last holds a NaN or an infinity; not known of batches on a device."""
        recent = list(self._watch.batches.recent)
        floats = [t for batch in recent for t in tensors_in(batch) if t.is_floating_point()]
        return all(bool(torch.isfinite(tensor).all()) for tensor in floats)

    def with_line_of_loop(self, found: Diagnosis, loop_pass: LoopPass) -> Diagnosis:
        """A diagnosis of a batch that was bad when these lines read it, with the line before them that computed it in
        place of its name. That line cannot be run again, so the note says what is known of it."""
        lines, origin = loop_pass.slice, found.origin
        name = (origin.tensor or "").partition(".")[0] if origin is not None else ""
        frame = living(lines.owner, self._watch.slices.ended)
        line = computed_before(frame, lines.first_line, name) if frame is not None and name in loop_pass.taken else None
        if line is None or origin is None or origin.stack:
            return found
        source = f"{lines.filename}:{line}"
        code = linecache.getline(lines.filename, line).strip()
        note = f"{name} was computed last at {source}, out of what it was before; that is gone, so the line was not run"
        place = replace(origin, source=source, stack=(source,), code_line=code)
        return replace(found, origin=place, notes=(*found.notes, note))

    def replayable(self, loop_passes: Sequence[LoopPass], kind: type[LoopStep] = LoopStep) -> LoopStep:
        """The step in the form that the diagnosis replays."""
        last_lines = loop_passes[0] is self._last_lines  # the graph behind what they read is the program's
        loop_passes = [loop_pass.with_named_batches() for loop_pass in loop_passes]
        groups = self._watch.slices.before or self._with_previous(loop_passes)
        before = [[loop_pass.with_named_batches() for loop_pass in group] for group in groups]
        watch, loop, reading = self._watch, self._loop, self._reading
        models, calls = watch.models, list(watch.models.calls)
        scale = (
            reading.loss_scale
            if reading.loss_scale and any(loop_pass.slice.scaled for loop_pass in loop_passes)
            else 1.0
        )
        autocast = loop_passes[0].autocast or (calls[0].autocast if calls else {})
        facts = StepFacts(
            step=reading.step, symptom=self._symptom, findings=(), history=tuple(loop.log.recent),
            accumulation=1, device_type=loop.parameters[0].device.type,
            autocast=next(iter(autocast.values()), None), loss_scale=reading.loss_scale,
            select_rows=rows_of_loop_pass(*((None,) if last_lines else self._size(loop_passes[0]))),
            parameter_names={id(p): name for name, p in loop.named_parameters().items()},
        )  # fmt: skip
        forward = models.forward_state()
        entry = models.entry if models.entry is not None else forward.take()
        modules = [call.module for call in calls] or models.roots()
        replayable = kind(loop, self._state, forward, entry, modules, loop_passes, before, facts, scale)
        replayable.forward_only = last_lines
        look_back(replayable, watch.past)
        return replayable

    def _with_previous(self, loop_passes: Sequence[LoopPass]) -> list[list[LoopPass]]:
        """The same lines on the batch that the loader gave before, where no earlier update's lines are kept."""
        names, recent = loop_passes[0].slice.batch_names, list(self._watch.batches.recent)
        batch = bind_batch(names, recent[-2]) if names and len(recent) > 1 and len(loop_passes) == 1 else None
        if batch is None:
            return []
        previous = replace(loop_passes[0], taken={**loop_passes[0].taken, **batch})
        previous.marks = marks_of(previous.batch)
        return [[previous]]

    def _size(self, loop_pass: LoopPass) -> tuple[int | None, int]:
        """How many rows the batch has: as the model was called, else as most of what the lines read. And how many of
        those belong to one sample, where the loader gave fewer samples: the candidates for one sentence, say."""
        calls = self._watch.models.calls
        first = first_tensor_in((calls[0].args, calls[0].kwargs)) if calls else None
        sides = [tensor.size(0) for tensor in _plain(loop_pass.batch) if tensor.dim()]  # a nested one has no shape
        if first is None or not describable(first) or not first.dim():  # of `vmap` it has the shape of one row
            return (Counter(sides).most_common(1)[0][0] if sides else None), 1
        size, found = int(first.shape[0]), self._watch.batches.find(loop_pass.batch)
        samples = len(found.indices) if found is not None and found.how != ROWS else 0
        grouped = 1 < samples < size and size % samples == 0 and samples in sides
        return (samples, size // samples) if grouped else (size, 1)


def _with_earlier_numbers(loop_passes: Sequence[LoopPass]) -> Iterator[list[LoopPass]]:
    """The same lines with the random numbers from before this round, where they are others."""
    earlier = [loop_pass.earlier for loop_pass in loop_passes]
    found = [loop_pass for loop_pass in earlier if loop_pass is not None]
    if len(found) == len(loop_passes) and any(
        not same_rng(a.rng, b.rng) for a, b in zip(loop_passes, found, strict=True)
    ):
        yield found


def _plain(batch: Any) -> list[Tensor]:
    """Its tensors without trained weights; `grad` gives gradients that have a graph themselves."""
    return [tensor for tensor in tensors_in(batch) if not (tensor.requires_grad and tensor.is_leaf)]


def _ids(batch: Any) -> tuple[int, ...]:
    return tuple(id(tensor) for tensor in tensors_in(batch))
