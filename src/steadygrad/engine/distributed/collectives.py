"""Many ranks, one decision: what the ranks of a run tell each other, and catching one that fell out of step.

Every step each rank puts one short vector into one all_reduce (SUM, float64) on its own group: a token of where it
is and of all it has decided so far, whether its own losses were finite, and its loss terms. What comes out is the
same on every rank to the bit, so judging it gives the same decision everywhere.

- Sums, never maxima: MAX of a number and a NaN is either of them, depending on the order of the ranks.
- The token and its square are summed: all ranks are in step if and only if both sums fit. So all of them see a rank
  that is not, at the same moment, and all raise.
- Every exchange begins with the same vector. Two ranks that meet in different places find a token that does not fit,
  and not a message of the wrong length, which would abort the process.
- The group is apart from the model's: a collective that the user's program forgot is not answered by one of ours.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...records import Decision, to_plain
from ...records.errors import RanksError, SteadyError, UsageError
from .exit_messages import ExitMessages, check_in

TERMS = 16
"""Loss terms of a micro-batch that are averaged over the ranks; what comes after them is left out of the judgement."""
_NO_STEP = float(1 << 20)
"""In the place for guards that have failed: this exchange is not about a step, so that both are told apart."""
_LOST = 1.0 / 1024
"""In the same place, from a rank whose guard has failed while a step is refused: no other value has a fraction."""
_LOST_WORD = "the guard of this rank has failed"
_TOKEN_BITS = 20
_RANKS_A_SLOT = 50  # a float64 holds 53 bits exactly


class OtherRankFailed(SteadyError):
    """The guard of another rank has failed: finish this step as a plain loop would, and go on as one."""

    def __init__(self, losses_finite: bool) -> None:
        super().__init__("the guard of another rank has failed, so all ranks go on without")
        self.losses_finite = losses_finite


class FailedForAll(Exception):
    """What one rank did for all of them has failed there, and every rank knows: none waits for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What all ranks know of one step: means over the ranks, and who was bad before any reduction could hide it."""

    terms: tuple[tuple[float, ...], ...]
    bad_ranks: tuple[int, ...]
    lost_ranks: int
    squares: tuple[float, ...]


class RankCollectives:
    """One rank's end of the agreement. Exists only where there are at least two; one process pays nothing."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = _communicating(device)
        self._words = ExitMessages(check_in(self.rank, self.size), self.rank, self.size)
        timeout = default_timeout()
        self._group = dist.new_group(timeout=timeout) if timeout is not None else dist.new_group()
        self._num_micro, self._num_squares = 1, 0
        self._slots = -(-self.size // _RANKS_A_SLOT)
        self._digest = 0
        self._calls = 0
        self._place = "the beginning"
        self._token = 0
        self._under_way: tuple[Any, Tensor] | None = None
        self._read: list[float] | None = None
        self._owes_value = False
        """Whether the others wait for a value of this rank, and nothing of it has been sent."""
        self.half_told = False
        """Whether some of a value has been sent."""

    # -- once

    def introduce(self, facts: dict[str, Any], *, num_micro: int, num_squares: int) -> list[dict[str, Any]]:
        """Tell each other how the guards were made. One clear sentence on every rank if they differ. Collective."""
        told: list[dict[str, Any]] = self._gather(facts)
        for name in facts:
            values = [each.get(name) for each in told]
            if any(value != values[0] for value in values):
                other = next(rank for rank, value in enumerate(values) if value != values[0])
                raise UsageError(
                    f"The guards of this run were not made alike: {name} is {values[0]!r} on rank 0 and "
                    f"{values[other]!r} on rank {other}. They could not decide alike; give them the same arguments."
                )
        self._num_micro, self._num_squares = num_micro, num_squares
        return told

    # -- every step

    def begin(
        self, step: int, batches: int, micros: Sequence[dict[str, Tensor]], *, squares: Tensor | None = None,
        lost: bool = False,
    ) -> None:  # fmt: skip
        """Send this rank's vector for one step. Does not wait: begun before backward, it travels beside it.

        One asynchronous all_reduce of some hundred bytes; allocates that much; does not sync with the host.
        """
        names = tuple(name for name in micros[0] if all(name in micro for micro in micros)) if micros else ()
        self._at(f"batch {batches}, step {step}, terms {'+'.join(names) or 'none'}")
        vector = self._blank()
        vector[2] = float(lost)
        if micros:
            width = min(len(names), TERMS)
            flat = torch.stack(
                [micro[name].detach().to(self.device, torch.float64) for micro in micros for name in names[:width]]
            )
            bad = ~torch.isfinite(flat).all()
            vector[3 + self.rank // _RANKS_A_SLOT] = bad * float(1 << self.rank % _RANKS_A_SLOT)
            start = self._first_term()
            room = vector[start : start + len(micros) * TERMS].view(len(micros), TERMS)
            room[:, :width] = flat.view(len(micros), width)
        if squares is not None:
            vector[vector.numel() - self._num_squares :] = squares
        self._send(vector)

    def read_with(self, numbers: Tensor) -> list[float]:
        """These numbers, in one host read with the vector that was begun, which `finish` then has. Waits for others."""
        if self._under_way is None:
            found: list[float] = numbers.tolist()
            return found
        (work, vector), self._under_way = self._under_way, None
        try:
            work.wait()
            values: list[float] = torch.cat([vector, numbers.to(vector)]).tolist()
        except RuntimeError as error:
            raise self.lost(error) from error
        self._read, rest = values[: vector.numel()], values[vector.numel() :]
        return rest

    def finish(self, num_terms: int, num_micro: int = 1) -> Agreed:
        """Wait for the vector that was begun. One host read, or none after `read_with`.

        Raises RanksError on every rank if one is out of step.
        """
        start, size = self._first_term(), float(self.size)
        values = self._receive()
        width = min(num_terms, TERMS)
        terms = tuple(
            tuple(v / size for v in values[start + i * TERMS : start + i * TERMS + width]) for i in range(num_micro)
        )
        masks = [int(v) for v in values[3 : 3 + self._slots]]
        bad = tuple(r for r in range(self.size) if masks[r // _RANKS_A_SLOT] >> r % _RANKS_A_SLOT & 1)
        squares = tuple(values[len(values) - self._num_squares :]) if self._num_squares else ()
        return Agreed(terms=terms, bad_ranks=bad, lost_ranks=int(values[2]), squares=squares)

    def note(self, decision: Decision) -> None:
        """Make a decision part of what every later token stands for. Host only, a few microseconds."""
        said = (decision.step, *decision.actions, decision.lr_factor, decision.clip_factor, decision.dropped_terms)
        self._digest = zlib.crc32(repr(said).encode(), self._digest)

    # -- the rare path

    def exchange(self, about: str, value: Any) -> list[Any]:
        """Every rank's plain value, in the order of ranks, on every rank. Three small collectives; syncs."""
        self._at(about)
        self._send(self._blank())
        self._receive()
        self._owes_value = True
        told = self._gather(value)
        if _LOST_WORD in told:
            raise OtherRankFailed(losses_finite=False)
        return told

    def announce_loss(self) -> None:
        """The guard of this rank has failed while a step is being refused. The others meet this word at their next
        exchange, at the latest where they go on together, and go on without guards as well. Waits for them."""
        if self._owes_value:
            self._gather(_LOST_WORD)
            return
        if self._under_way is not None:
            self.read_with(self._under_way[1][:0])
        self._at("a failed guard")
        vector = self._blank()
        vector[2] += _LOST
        self._send(vector)
        self.read_with(vector[:0])
        self._read = None

    def any(self, about: str, flag: bool) -> bool:
        """Whether it is so on any rank. One collective; syncs."""
        self._at(about)
        vector = self._blank()
        vector[2] += float(flag)
        self._send(vector)
        return self._receive()[2] > self.size * _NO_STEP

    def all(self, about: str, flag: bool) -> bool:
        """Whether it is so on every rank. One collective; syncs."""
        return not self.any(about, not flag)

    def abandon(self) -> None:
        """The step that was begun ends here, because the user's code raised: the vector is let go."""
        self._under_way = self._read = None

    def say(self, sentence: str) -> None:
        """Leave a word for the others before leaving. Never raises and never waits for them."""
        self._words.say(sentence)

    def lost(self, error: BaseException) -> RanksError:
        """What to raise when a collective failed: who is gone, and what they said last. Waits a second for words."""
        self.say(f"rank {self.rank} found the others gone at {self._place}")
        return RanksError(
            f"Rank {self.rank} lost the other ranks at {self._place}: {self._words.of_the_others()}. "
            "No update was applied that another rank refused. "
            f"({type(error).__name__}: {str(error).splitlines()[0][:200]})"
        )

    # -- inside

    def _at(self, place: str) -> None:
        self._place = place
        said = f"{self._calls} {place} {self._digest}"
        self._token = zlib.crc32(said.encode()) & ((1 << _TOKEN_BITS) - 1)

    def _first_term(self) -> int:
        return 3 + self._slots

    def _blank(self) -> Tensor:
        length = self._first_term() + self._num_micro * TERMS + self._num_squares
        vector = torch.zeros(length, dtype=torch.float64, device=self.device)
        vector[0], vector[1], vector[2] = self._token, self._token * self._token, _NO_STEP
        return vector

    def _send(self, vector: Tensor) -> None:
        assert self._under_way is None, "one exchange at a time"
        try:
            work = dist.all_reduce(vector, group=self._group, async_op=True)
        except RuntimeError as error:
            raise self.lost(error) from error
        self._under_way = (work, vector)
        self._calls += 1  # only now: what failed before it was sent can be said again

    def _receive(self) -> list[float]:
        if self._read is None:
            assert self._under_way is not None
            self.read_with(self._under_way[1][:0])
        values, self._read = self._read or [], None
        if values[2] % 1.0:
            raise OtherRankFailed(losses_finite=False)
        if 0 < values[2] < _NO_STEP:
            return values  # a guard that has failed does not know what the others decided; all go on as plain loops
        if values[0] != self._token * self.size or values[1] != self._token * self._token * self.size:
            raise self._out_of_step()
        return values

    def _out_of_step(self) -> RanksError:
        here = f"{self._place} (exchange {self._calls}, decisions {self._digest:08x})"
        places = self._gather(here)
        listed = "; ".join(f"rank {rank}: {place}" for rank, place in enumerate(places))
        self.say(f"rank {self.rank} stopped because the ranks were out of step")
        return RanksError(
            f"The ranks are out of step: {listed}. A rank that skips or repeats a step would mix gradients of other "
            "batches into this one, so all ranks stop here and no update of this step is applied. Call guard.step() "
            "equally often on every rank, and catch no exception around it on one rank alone."
        )

    def _gather(self, value: Any) -> list[Any]:
        data = json.dumps(to_plain(value)).encode()
        try:
            sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
            self._owes_value, self.half_told = False, True
            dist.all_gather(sizes, torch.tensor([len(data)], device=self.device), group=self._group)
            lengths = [int(size) for size in sizes]
            padded = torch.zeros(max(lengths), dtype=torch.uint8, device=self.device)
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            parts = [torch.zeros_like(padded) for _ in range(self.size)]
            dist.all_gather(parts, padded, group=self._group)
            self.half_told = False
        except RuntimeError as error:
            raise self.lost(error) from error
        return [json.loads(bytes(part[:length].tolist())) for part, length in zip(parts, lengths, strict=True)]


def world_size() -> int:
    """How many processes train together as far as torch.distributed knows; 1 without it."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def default_timeout() -> Any:
    """How long a collective of the user's own group may take; None if torch does not say."""
    try:
        group = dist.distributed_c10d._get_default_group()
        device = group._device_types[0]
        return group._get_backend(device).options._timeout
    except (AttributeError, IndexError, RuntimeError):
        return None


def _communicating(device: torch.device) -> torch.device:
    """The model's device if the ranks can talk about tensors on it, else the host."""
    return device if device.type in dist.get_backend_config() else torch.device("cpu")
