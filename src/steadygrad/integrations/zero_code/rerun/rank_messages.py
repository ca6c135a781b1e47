"""A refused step of several ranks under `steady run`: who was bad first, found and told without a collective.

The loop is the program's own, so no group is made for it and nothing is sent while steps are finite. Where torch keeps
the ranks together (DDP, FSDP2) all of them refuse the same step, and there they leave each other a few words in the
store that they met at. A rank that looks closer does so alone: gradients are not reduced, copies of the parameters
play their part (an operation may change a dtype, and DDP would lose its hooks), and a line that would talk to the
other ranks is stopped before it does, because they are not running it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ....detect.tensors.foreign_objects import getattr
from ....detect.tensors.living_objects import living
from ....detect.tensors.sharded_tensors import is_sharded
from ....diagnosis.distributed.joint_examination import understudies
from ....diagnosis.distributed.unsharded import NoCollectives
from ....engine.distributed.consensus import without_reducing
from ....engine.state.training_state import TrainingState
from ....records import Diagnosis, Reading, from_plain, to_plain
from ...optimizer.optimizer_loop import OptimizerLoop
from ..hooks.call_log import gradients_kept

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop

logger = logging.getLogger("steadygrad")
_SEEN = ("bad_inputs", "bad_parameters", "bad_state", "bad_buffers")
"""What one rank found was found on all: they must decide alike."""
_LOSSES_S = 60.0
"""How long to wait for what the other ranks saw: they are at the same line of the same step."""
_DIAGNOSIS_S = 300.0
"""How long to wait for the rank that looks closer. The next collective of the program would wait for it as well."""


class RankMessages:
    """What the ranks of one optimizer tell each other about a step that all of them refused."""

    _made = 0
    """How many optimizers of this process had something to tell the other ranks: the same on all of them."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._together = _train_together(parameters)
        RankMessages._made += self._together
        self._place = RankMessages._made
        self._refusals = 0
        self._store: Any = None

    def agree(self, reading: Reading) -> Reading:
        """The reading with every rank's loss and the ranks that were bad; this rank's own where none is known to be.

        Waits for the other ranks, which have refused the same step. Nothing is sent through a process group.
        """
        self._refusals += 1
        seen = {name: getattr(reading, name) for name in _SEEN}
        told = self._exchange("seen", {"loss": reading.loss, **seen}, _LOSSES_S)
        reading = replace(reading, rank=self.rank)
        if told is None:
            return reading
        merged = {name: tuple(dict.fromkeys(item for each in told for item in each[name])) for name in _SEEN}
        reading = replace(reading, **merged)  # type: ignore[arg-type]
        losses = [float(each["loss"]) for each in told]
        bad = [rank for rank, each in enumerate(told) if each["bad_inputs"]]
        bad = bad or [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
        if not bad:
            return reading
        return replace(
            reading, loss=sum(losses) / self.size, local_loss=reading.loss, num_ranks=self.size, bad_ranks=tuple(bad),
            rank_losses=tuple(losses), rank=bad[0], batch_key=reading.batch_key if self.rank in bad else None,
        )  # fmt: skip

    def in_common(self, steps: Sequence[int]) -> list[int]:
        """Of some steps those that every rank names, in order. Nothing where someone does not answer."""
        told = self._exchange("steps", {"steps": list(steps)}, _LOSSES_S)
        return [] if told is None else sorted(set(told[0]["steps"]).intersection(*(each["steps"] for each in told)))

    @property
    def speaks(self) -> bool:
        """Whether this rank is the one that tells others of an incident that all of them have."""
        return self.rank == 0 or not self._together

    def leads(self, reading: Reading) -> bool:
        """Whether this rank is to look closer at the step: the first bad one, or each of them where none is known."""
        return not reading.bad_ranks or reading.bad_ranks[0] == self.rank

    def share(self, reading: Reading, found: Diagnosis | None, batch_key: str | None) -> tuple[Diagnosis, str] | None:
        """Leave what this rank found. If it found nothing: what another one found, and in which batch.

        Waits, in the second case, for the rank that looks closer.
        """
        wait_s = _DIAGNOSIS_S if found is None else 0.0
        told = self._exchange("found", {"found": found, "batch": batch_key or ""}, wait_s)
        if told is None:
            return None
        answers = [rank for rank, each in enumerate(told) if each["found"] is not None]
        rank = min(answers, key=lambda rank: (told[rank]["found"]["cause"] is None, rank), default=None)
        if rank is None:
            return None
        diagnosis = from_plain(Diagnosis, told[rank]["found"])
        return replace(diagnosis, notes=(*diagnosis.notes, f"found on rank {rank}")), told[rank]["batch"]

    def _exchange(self, about: str, value: dict[str, Any], wait_s: float) -> list[dict[str, Any]] | None:
        """Every rank's word; None where this one need not wait, or someone does not come: then never again."""
        if not self._together:
            return None
        if self._store is None:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            shared = dist.distributed_c10d._get_default_store()
            self._store = dist.distributed_c10d.PrefixStore(f"steadygrad/{attempt}/run{self._place}", shared)
        keys = [f"{self._refusals}/{about}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], json.dumps(to_plain(value), allow_nan=False))
            if not wait_s:
                return None
            self._store.wait(keys, timedelta(seconds=wait_s))
            return [json.loads(self._store.get(key)) for key in keys]
        except (RuntimeError, ValueError) as error:
            self._together = False
            first = next(iter(str(error).splitlines()), "")[:200]
            logger.warning("the ranks did not hear of each other's refused step, so each tells its own (%s)", first)
            return None


def _train_together(parameters: Sequence[Tensor]) -> bool:
    """Whether torch itself keeps these parameters the same, or in parts, on all ranks of the program."""
    world = dist.get_world_size()
    if any(is_sharded(parameter) for parameter in parameters):
        return all(int(p.device_mesh.size()) == world for p in parameters if is_sharded(p))  # type: ignore[attr-defined]
    return any(wrapper.process_group.size() == world for wrapper in wrappers_of(parameters))


def wrappers_of(parameters: Sequence[Tensor]) -> list[DistributedDataParallel]:
    """Every DDP in the process around any of these parameters. Walks all living objects: not for each step."""
    wanted = {id(parameter) for parameter in parameters}
    found = living(DistributedDataParallel)
    return [wrapper for wrapper in found if any(id(parameter) in wanted for parameter in wrapper.parameters())]


@contextmanager
def on_its_own(loop: OptimizerLoop, state: TrainingState, models: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, this rank can run its step again without the others. Afterwards everything is as it was."""
    cast = _Cast(loop, models)
    with ExitStack() as stack:
        stack.enter_context(without_reducing(nn.ModuleList(wrappers_of(loop.parameters))))
        stack.enter_context(gradients_kept(list(loop.parameters)))
        stack.enter_context(understudies(cast, state))
        stack.enter_context(NoCollectives())  # type: ignore[no-untyped-call]
        yield


class _Cast:
    """Whose parameters are played by copies."""

    def __init__(self, loop: OptimizerLoop, models: Sequence[nn.Module]) -> None:
        self._loop = loop
        self.model: nn.Module = nn.ModuleList(models)
        self.optimizers = [loop.optimizer]

    @property
    def parameters(self) -> Sequence[Tensor]:
        return self._loop.parameters

    @parameters.setter
    def parameters(self, others: Sequence[Tensor]) -> None:
        self._loop.parameters = list(others)


def parts_only(watch: ProcessLoop, loop: OptimizerLoop) -> bool:
    """Whether an update cannot be withheld by what this process sees of it: each rank holds a part only."""
    if watch.alone:
        return False
    parts = any(type(parameter).__name__ == "FlatParameter" for parameter in loop.parameters)
    if not parts and "deepspeed" not in sys.modules:
        return False
    watch.ledger.tell(
        "sharded",
        "each rank holds a part of every gradient here (DeepSpeed or FSDP1), so no rank can decide alone: updates "
        "are recorded, not refused. FSDP2 (fully_shard) is guarded",
    )
    return True
