"""Which parts of a loop can be run again for a refused step, in the order in which they are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...diagnosis.patient import StepFacts
from ...engine.rng import same_rng
from ...engine.tape import first_tensor_in, tensors_in
from ...engine.training_state import TrainingState
from ...records import Reading
from ..desk import Desk
from .earlier_play import look_back
from .play_patient import PlayPatient, rows_of_play
from .slices import Play

if TYPE_CHECKING:
    from .watch import Watch

_MAX_ATTEMPTS = 6


class Rerun:
    """One refused step of a watched program."""

    def __init__(self, watch: Watch, desk: Desk, reading: Reading, state: TrainingState, symptom: str) -> None:
        self._watch, self._desk, self._reading, self._state, self._symptom = watch, desk, reading, state, symptom

        self.made_before = False
        """Whether the lines of the first attempt hang on calls that were made before them."""

    def attempts(self) -> Iterator[list[Play]]:
        """The lines from the model's call first, then longer parts of the loop on the batches of its loader."""
        slices = self._watch.slices
        count = 0
        if slices.plays and len(slices.plays) == len(slices.reached):
            count += 1
            if not any(play.overwritten for play in slices.plays):
                yield list(slices.plays)
                yield from _with_earlier_numbers(slices.plays)
        if self.made_before:
            yield from ([play] for play in slices.from_earlier_call())
        tried: set[tuple[Any, ...]] = set()
        for handed in [*reversed(self._watch.batches.recent), None]:
            for _, plays in slices.variants(handed):
                key = tuple((play.slice.code.co_code, play.slice.first_line, _ids(play.batch)) for play in plays)
                if key in tried or any(play.overwritten for play in plays):
                    continue
                tried.add(key)
                count += 1
                if count > _MAX_ATTEMPTS:
                    return
                yield from _with_earlier_numbers(plays)
                yield plays

    def was_given_good(self) -> bool:
        """Whether no batch that the loader gave last holds a NaN or an infinity; not known of batches on a device."""
        recent = list(self._watch.batches.recent)
        floats = [t for batch in recent for t in tensors_in(batch) if t.is_floating_point()]
        return all(bool(torch.isfinite(tensor).all()) for tensor in floats)

    def patient(self, plays: Sequence[Play]) -> PlayPatient:
        """The step in the form that the diagnosis replays."""
        plays = [play.with_named_batches() for play in plays]
        before = [[play.with_named_batches() for play in group] for group in self._watch.slices.before]
        watch, desk, reading = self._watch, self._desk, self._reading
        models, calls = watch.models, list(watch.models.calls)
        scale = reading.loss_scale if reading.loss_scale and any(play.slice.scaled for play in plays) else 1.0
        autocast = plays[0].autocast or (calls[0].autocast if calls else {})
        facts = StepFacts(
            step=reading.step, symptom=self._symptom, findings=(), history=tuple(desk.books.recent),
            accumulation=1, device_type=desk.parameters[0].device.type,
            autocast=next(iter(autocast.values()), None), loss_scale=reading.loss_scale,
            select_rows=rows_of_play(self._size(plays[0])),
            parameter_names={id(p): name for name, p in desk.named_parameters().items()},
        )  # fmt: skip
        forward = models.forward_state()
        entry = models.entry if models.entry is not None else forward.take()
        modules = [call.module for call in calls] or models.roots()
        patient = PlayPatient(desk, self._state, forward, entry, modules, plays, before, facts, scale)
        look_back(patient, watch.past)
        return patient

    def _size(self, play: Play) -> int | None:
        """How many rows the batch has: as the model was called, else as most of what the lines read."""
        calls = self._watch.models.calls
        first = first_tensor_in((calls[0].args, calls[0].kwargs)) if calls else None
        if first is not None and first.dim():
            return int(first.shape[0])
        sides = [int(tensor.shape[0]) for tensor in _plain(play.batch) if tensor.dim()]
        return Counter(sides).most_common(1)[0][0] if sides else None


def _with_earlier_numbers(plays: Sequence[Play]) -> Iterator[list[Play]]:
    """The same lines with the random numbers from before this round, where they are others."""
    earlier = [play.earlier for play in plays]
    found = [play for play in earlier if play is not None]
    if len(found) == len(plays) and any(not same_rng(a.rng, b.rng) for a, b in zip(plays, found, strict=True)):
        yield found


def _plain(batch: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(batch) if not tensor.requires_grad]


def _ids(batch: Any) -> tuple[int, ...]:
    return tuple(id(tensor) for tensor in tensors_in(batch))
