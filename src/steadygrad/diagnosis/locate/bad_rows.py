"""Which samples are guilty: read off the origin where dimension 0 is the batch, else found by running subsets.

A reading is a hint and the replay is the proof: without the accused rows the step must be finite, and with any one of
them added it must fail again. Where no row fails alone, or the rest still fails, the rows are coupled and the
question has no answer.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ..isolation.device_memory import forget, is_out_of_memory
from ..isolation.resource_limits import in_a_line
from ..replay.batch_tree import parts_of, rebuilt, walk_batch
from ..replay.replay_step import CANNOT_RUN, replay
from ..replay.replayable import Replayable
from .examine import Examination
from .indivisible_batch import indivisible

MAX_REPLAYS = 96
Select = Callable[[Any, Sequence[int]], Any]


@dataclass(frozen=True, slots=True)
class BadRows:
    """`rows` is None where the question makes no sense; `coupled` says that rows fail only together."""

    rows: tuple[int, ...] | None = None
    coupled: bool = False
    proven: bool = False
    why: str = ""
    """Why no run of the step shows which rows it is: nothing is known of them then but what can be read off. "" where
    one does, or where the question makes no sense."""
    packed: bool = False
    """The rows are samples of a packed batch, which cannot be cut: they are read off and named, and not left out."""


def num_rows(batch: Any, select: Select | None = None) -> int:
    """The batch size: the leading dimension most tensors of the batch share; 0 where there is none.

    With `select`, a size that it can take all rows of: where time comes first, most leading dimensions are not it.
    """
    tensors = _counted(batch)
    sizes = [size for size, _ in Counter(tensor.shape[0] for tensor in tensors).most_common()]
    if not sizes:
        return 0
    if select is not None:
        inner = [size for size, _ in Counter(t.shape[1] for t in tensors if t.dim() > 1).most_common()]
        for size in dict.fromkeys([*sizes, *inner]):
            if _takes_all(batch, select, size, [tensor.shape for tensor in tensors]):
                return size
    return sizes[0]


def _counted(batch: Any) -> list[torch.Tensor]:
    """The tensors whose first side may be the batch: not those in a list of records, one for each sample, such as the
    boxes of each image."""
    leaves = [(key, value) for key, value in walk_batch(batch) if isinstance(value, torch.Tensor) and value.dim()]
    sides = Counter(value.shape[0] for key, value in leaves if row_by_key(batch, key, None) is None)
    outside = [value for key, value in leaves if not any(row_by_key(batch, key, s) is not None for s in sides)]
    return outside or [value for _, value in leaves]


def row_by_key(batch: Any, key: str, size: int | None) -> int | None:
    """Which sample an entry belongs to by the way to it: its place in a list of records that is `size` long, or of any
    length; None where the way leads through none."""
    here = batch
    for part in key.split("."):
        records = isinstance(here, list | tuple) and not hasattr(here, "_fields") and len(here) == (size or len(here))
        if records and all(isinstance(item, Mapping) for item in here):
            return int(part)
        here = {str(name): item for name, item in parts_of(here) or []}.get(part)
    return None


def _takes_all(batch: Any, select: Select, size: int, shapes: list[torch.Size]) -> bool:
    """Whether choosing this many rows gives the whole batch, and one row less than that."""
    try:
        whole, one = select(batch, list(range(size))), select(batch, [0])
    except CANNOT_RUN:
        return False
    found = [[v.shape for _, v in walk_batch(b) if isinstance(v, torch.Tensor) and v.dim()] for b in (whole, one)]
    return found[0] == shapes and (size == 1 or found[1] != shapes)


def bad_batch_rows(batch: Any, key: str, select: Select | None = None) -> tuple[int, ...]:
    """The rows of one batch entry that hold a NaN or an infinity.

    Where the entry's first side is not the batch (time comes first, say), `select` tells what belongs to a row.
    """
    value = next((value for name, value in walk_batch(batch) if name == key), None)
    if not isinstance(value, torch.Tensor) or not value.dim():
        return ()
    size = num_rows(batch, select)
    if (row := row_by_key(batch, key, size)) is not None:
        return () if bool(torch.isfinite(value).all()) else (row,)
    if value.shape[0] == size or select is None:
        return tuple((~torch.isfinite(value.reshape(value.shape[0], -1))).any(1).nonzero().flatten().tolist())
    rows = []
    for row in range(size):
        alone = next((v for name, v in walk_batch(select(batch, [row])) if name == key), None)
        if isinstance(alone, torch.Tensor) and alone.numel() < value.numel() and not bool(torch.isfinite(alone).all()):
            rows.append(row)
    return tuple(rows)


def data_rows(replayable: Replayable, exam: Examination, key: str) -> tuple[int, ...]:
    """The rows of a bad batch entry, and those of other bad entries where the step stays sick without the first."""
    guilty = exam.seen.guilty_batch or 0
    batch, select = replayable.batches[guilty], replayable.facts.select_rows
    rows = bad_batch_rows(batch, key, select)
    others = {name for name, value in walk_batch(batch) if isinstance(value, torch.Tensor) and name != key}
    every = tuple(sorted({*rows, *(row for name in others for row in bad_batch_rows(batch, name, select))}))
    if select is None or not rows or every == rows or indivisible(exam.trace, batch, num_rows(batch, select)):
        return rows
    test = _RowSubsets(replayable, lambda seen: not seen.loss_finite or bool(seen.bad_gradients), "backward", guilty)
    size = num_rows(batch, select)
    without, without_any = (tuple(row for row in range(size) if row not in left) for left in (rows, every))
    return every if test(without) and test(without_any) is False and without_any else rows


def read_rows(exam: Examination, size: int) -> tuple[int, ...] | None:
    """The rows in which the origin's output is bad, if its leading dimension is the batch or the batch flattened."""
    bad = exam.captured_op.bad_leading
    if not bad or not size or len(bad) % size:
        return None  # see `read_groups` for rows that come in groups
    share = len(bad) // size
    return tuple(row for row in range(size) if any(bad[row * share : (row + 1) * share]))


def rows_without_proof(exam: Examination, batch: Any, select: Select | None) -> tuple[int, ...] | None:
    """The rows that can be read off without a replay that proves them: where an entry says which sample each row of the
    output belongs to, where it has one for each sample, or as many as an entry of the batch has places for each sample
    (tokens of texts)."""
    packed = _packed_rows(exam, batch)
    if packed is not None:
        return packed
    size, length = num_rows(batch, select), len(exam.captured_op.bad_leading)
    sides = [value.shape for _, value in walk_batch(batch) if isinstance(value, torch.Tensor) and value.dim() > 1]
    flattened = any(length in accumulate(shape, operator.mul) for shape in sides if shape[0] == size)
    return read_rows(exam, size) if length == size or flattened else None


def read_groups(exam: Examination, size: int) -> tuple[int, ...] | None:
    """The rows of the groups in which the origin's output is bad, if its leading dimension counts groups of rows."""
    bad = exam.captured_op.bad_leading
    if not any(bad) or not 1 < len(bad) < size or size % len(bad):
        return None
    share = size // len(bad)
    return tuple(row for row in range(size) if bad[row // share])


def _packed_rows(exam: Examination, batch: Any) -> tuple[int, ...] | None:
    """The samples of a packed batch in which the origin's output is bad; None where that cannot be read off.

    An entry of rising whole numbers says which sample each row belongs to, as for the atoms of several molecules, or
    one of lengths how many rows each sample has, as for texts one behind another; another entry has one row for each
    sample.
    """
    bad = exam.captured_op.bad_leading
    tensors = [value for _, value in walk_batch(batch) if isinstance(value, torch.Tensor) and value.dim()]
    for value in tensors if any(bad) else ():
        if value.dim() != 1 or not value.shape[0] or value.dtype not in (torch.int32, torch.int64):
            continue
        others = [other.shape[0] for other in tensors if other is not value]
        numbers, size = value.tolist(), value.shape[0]
        if min(numbers) >= 0 and size in others and sum(numbers) in others and sum(numbers) > size:
            numbers = [sample for sample, length in enumerate(numbers) for _ in range(length)]
            count, size = size, len(numbers)
        else:
            count = numbers[-1] + 1
            if numbers[0] or sorted(numbers) != numbers or count not in others:
                continue
        guilty = {row if len(bad) == count else numbers[row] for row, is_bad in enumerate(bad) if is_bad}
        if len(bad) in (count, size) and len(guilty) < count < size:
            return tuple(sorted(guilty))
    return None


class _RowSubsets:
    """Is the step sick with only these rows? Remembers its answers; an answer may be None: it could not be run."""

    def __init__(self, replayable: Replayable, sick: Callable[[Any], bool], until: str, guilty: int) -> None:
        self.replayable, self.sick, self.until, self.guilty = replayable, sick, until, guilty
        self.left = MAX_REPLAYS
        self.ran, self.error = False, ""
        self.size = num_rows(replayable.batches[guilty], replayable.facts.select_rows)
        self._known: dict[tuple[int, ...], bool | None] = {}

    def __call__(self, rows: Sequence[int]) -> bool | None:
        key = tuple(rows)
        if not key:
            return False
        if key not in self._known:
            self._known[key] = self._run(key)
        return self._known[key]

    def other_batch_is_sound(self) -> bool:
        """Whether another batch does well in the same state; if not, or if there is none, no row is the cause."""
        following = getattr(self.replayable, "following", None)
        batches = following(1) if following is not None else None
        if batches is None:
            return False
        try:
            return not self.sick(replay(self.replayable, batches=batches, until=self.until))
        except CANNOT_RUN:
            return False

    def among_others(self, row: int) -> bool | None:
        """Whether this row makes a healthy batch sick when it takes the place of one of its rows; None if not known."""
        following = getattr(self.replayable, "following", None)
        others = following(1) if following is not None else None
        if not others:
            return None
        mixed = grafted(others[0], self.replayable.batches[self.guilty], row)
        return None if mixed is None else self._with(mixed)

    def runs(self, rows: Sequence[int]) -> bool:
        """Whether the step can be run with these rows just as they are."""
        select = self.replayable.facts.select_rows
        assert select is not None
        try:
            return self._with(select(self.replayable.batches[self.guilty], list(rows))) is not None
        except CANNOT_RUN:
            return False

    def _run(self, rows: tuple[int, ...]) -> bool | None:
        if self.left <= 0:
            return None
        self.left -= 1
        select = self.replayable.facts.select_rows
        assert select is not None
        batch = self.replayable.batches[self.guilty]
        try:
            answer = self._with(select(batch, list(rows)))
            if answer is None and 1 < self.size != len(rows):
                # Written for batches of one size: these rows over and over, until there are as many.
                answer = self._with(select(batch, [rows[place % len(rows)] for place in range(self.size)]))
        except CANNOT_RUN:
            return None
        self.ran = self.ran or (answer is not None and len(set(rows)) < self.size)
        return answer

    def _with(self, batch: Any) -> bool | None:
        """Whether the step is sick with this batch in the place of the guilty one."""
        batches = list(self.replayable.batches)
        batches[self.guilty] = batch
        try:
            seen = replay(self.replayable, batches=batches, until=self.until, altered=True)
        except CANNOT_RUN as error:
            self.error = self.error or in_a_line(error)
            if is_out_of_memory(error):
                forget(error)
            return None
        return self.sick(seen)


def grafted(sound: Any, sick: Any, row: int) -> Any:
    """The healthy batch with one row of the sick one in place of its last; None where the two are not alike."""
    size, other = num_rows(sick), num_rows(sound)
    if not size or size != other:
        return None
    found = _graft(sound, sick, row, size)
    return None if found is _UNLIKE else found


_UNLIKE = object()


def _graft(sound: Any, sick: Any, row: int, size: int) -> Any:
    if type(sound) is not type(sick):
        return _UNLIKE
    if isinstance(sound, torch.Tensor):
        if sound.shape != sick.shape:
            return _UNLIKE
        return torch.cat([sound[:-1], sick[row : row + 1]]) if sound.dim() and sound.shape[0] == size else sound
    ours, theirs = parts_of(sound), parts_of(sick)
    if ours is None or theirs is None:
        return sound
    if [key for key, _ in ours] != [key for key, _ in theirs]:
        return _UNLIKE
    parts = [(key, _graft(a, b, row, size)) for (key, a), (_, b) in zip(ours, theirs, strict=True)]
    return _UNLIKE if any(part is _UNLIKE for _, part in parts) else rebuilt(sound, parts)


def find_rows(replayable: Replayable, exam: Examination) -> BadRows:
    """The guilty rows of the (single) failing batch.

    Where the loss is bad they are looked for in forward passes alone. A row that spoils only the gradients may hide
    behind them, so the rest is run backward once.
    """
    found = _find_rows(replayable, exam)
    if found.why and (packed := _packed_rows(exam, replayable.batches[exam.seen.guilty_batch or 0])):
        return BadRows(rows=packed, packed=True)
    if exam.seen.loss_finite or not found.rows or not found.proven:
        return found
    test = _RowSubsets(
        replayable,
        lambda seen: not seen.loss_finite or bool(seen.bad_gradients),
        "backward",
        exam.seen.guilty_batch or 0,
    )
    rest = tuple(row for row in range(test.size) if row not in found.rows)
    if not rest or test(rest) is not True:
        return found
    more = _search(test, rest)
    sound = bool(more) and test(tuple(row for row in rest if row not in more)) is False
    return BadRows(rows=tuple(sorted({*found.rows, *more})), proven=True) if sound else found


def _find_rows(replayable: Replayable, exam: Examination) -> BadRows:
    if not replayable.batches or replayable.facts.select_rows is None:
        hint = (
            read_rows(exam, num_rows(replayable.batches[0], replayable.facts.select_rows))
            if replayable.batches
            else None
        )
        return BadRows(rows=hint)
    guilty_batch = exam.seen.guilty_batch or 0
    size = num_rows(replayable.batches[guilty_batch], replayable.facts.select_rows)
    if size < 1:
        return BadRows()
    why = indivisible(exam.trace, replayable.batches[guilty_batch], size)
    if why:
        return BadRows(why=why)
    in_forward = not exam.seen.loss_finite
    in_step = (exam.record is not None and exam.record.stage == "commit") or not exam.seen.sinks

    def sick(seen: Any) -> bool:
        if in_forward:
            return not seen.loss_finite
        return bool(seen.bad_gradients) or not seen.loss_finite or (in_step and bool(seen.bad_after))

    test = _RowSubsets(replayable, sick, "forward" if in_forward else "commit" if in_step else "backward", guilty_batch)
    hint = read_rows(exam, size)
    everyone = tuple(range(size))
    if hint and len(hint) < size and _proves(test, hint, everyone):
        return BadRows(rows=hint, proven=True)
    if size == 1:
        return BadRows(rows=hint)
    groups = read_groups(exam, size)
    if groups and len(groups) < size and not test.runs(everyone[:-1]):
        # The step runs with whole groups only (completions of one prompt): without the bad ones it must be finite.
        rest = tuple(row for row in everyone if row not in groups)
        if test(rest) is False:
            return BadRows(rows=groups, proven=True)
    guilty = tuple(sorted(_search(test, everyone)))
    if guilty == everyone:
        # Each row is sick alone. Said of all rows only if the origin shows it row by row and other batches are finite.
        if hint != everyone or not test.other_batch_is_sound():
            return BadRows()
        # Sick alone may mean only that one row is too few. Among finite rows a guilty one is still guilty.
        if any(test.among_others(row) is False for row in {0, size // 2, size - 1}):
            return BadRows(coupled=True)
        return BadRows(rows=hint, proven=True)
    if not guilty:
        if test.ran:
            return BadRows(coupled=True)
        read_off = rows_without_proof(exam, replayable.batches[guilty_batch], replayable.facts.select_rows)
        some = read_off if read_off and len(read_off) < size else None
        return BadRows(rows=some, why=f"the step does not run with other rows ({test.error})")
    # Where rows belong together (sentences of one speaker) a row may fail only when its group is incomplete: if the
    # batch is finite without one single row, it was that one.
    heal = [row for row in guilty if test(tuple(r for r in everyone if r != row)) is False] if len(guilty) > 1 else []
    if len(heal) == 1:
        return BadRows(rows=(heal[0],), proven=True)
    rest = tuple(row for row in everyone if row not in guilty)
    if test(rest) is None and guilty == hint:
        return BadRows(rows=guilty)  # the others do not run without them: they are padded to the longest, say
    if test(rest) is not False:
        return BadRows(coupled=True)
    # Alone a row may fail for its own reason, such as being alone. Among the finite ones it must fail as well.
    if len(guilty) > 1:
        returned = tuple(row for row in guilty if test(tuple(sorted((*rest, row)))) is not False)
        rest = tuple(row for row in everyone if row not in returned)
        guilty = returned if returned and test(rest) is False else guilty
    return BadRows(rows=guilty, proven=True)


def readers_of_state(replayable: Replayable, exam: Examination) -> BadRows:
    """The rows that ask for a part of the state that is bad, where the other rows do without it."""
    if exam.seen.loss_finite or replayable.facts.select_rows is None:
        return BadRows()
    guilty_batch = exam.seen.guilty_batch or 0
    size = num_rows(replayable.batches[guilty_batch], replayable.facts.select_rows)
    why = indivisible(exam.trace, replayable.batches[guilty_batch], size)
    if why:
        return BadRows(why=why)
    test = _RowSubsets(replayable, lambda seen: not seen.loss_finite, "forward", guilty_batch)
    if size < 2 or all(test((row,)) for row in {0, size // 2, size - 1}):
        return BadRows()  # whoever comes, it fails: not a question of rows
    guilty = tuple(sorted(_search(test, tuple(range(size)))))
    rest = tuple(row for row in range(size) if row not in guilty)
    return BadRows(rows=guilty, proven=True) if guilty and rest and test(rest) is False else BadRows()


def _proves(test: _RowSubsets, hint: tuple[int, ...], everyone: tuple[int, ...]) -> bool:
    rest = tuple(row for row in everyone if row not in hint)
    if test(rest) is not False:
        return False
    return all(test(tuple(sorted((*rest, row)))) is True for row in hint[:16])


def _search(test: _RowSubsets, rows: tuple[int, ...]) -> set[int]:
    """Rows that are sick by themselves, by halving; a row that cannot run alone is run twice over."""
    if len(rows) == 1:
        alone = test(rows)
        if alone is None:
            alone = test((rows[0], rows[0]))
        return set(rows) if alone else set()
    if test(rows) is False:
        return set()
    middle = len(rows) // 2
    return _search(test, rows[:middle]) | _search(test, rows[middle:])
