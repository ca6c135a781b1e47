"""What the engine and its recovery ask of the ranks. Alone, every answer is the question, and costs a call.

All that a rank finds out by itself goes through here before anything is decided on it: numbers of a step become means
over the ranks, what a second look finds on one rank was found on all, and a snapshot is good if it is good everywhere.
So all ranks take the same way through the engine, and the collectives inside a step that is run again meet.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...detect.gradient_norms import Gradients
from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.sharded_tensors import gradients_before_reduction, is_sharded, num_copies
from ...records import Decision, Reading
from ...records.errors import RanksError, UsageError
from ..fault_barrier import FaultBarrier, UserCodeError
from ..state.batch_buffer import BufferedBatch
from ..state.checkpoint_store import CheckpointStore
from ..state.snapshot_ring import Snapshot, SnapshotRing
from ..state.training_state import Tree
from ..step.user_step import UserStep
from ..step.window import Window
from .collectives import TERMS, Agreed, OtherRankFailed, RankCollectives, world_size

logger = logging.getLogger("steadygrad")
Looked = dict[str, Any]
_OTHER_SIZE = (
    "The checkpoint of step {} was written by {} ranks, and this run has {}. Every rank keeps its own part "
    "(shards, random numbers, its place in the data), so resume with as many ranks, or use another run_dir."
)


class SingleRank:
    """No one to ask: one process, or one of several that train each its own model."""

    size = 1
    sums_norms: bool = False

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def before_backward(
        self, step: int, batches: int, window: Window, barrier: FaultBarrier
    ) -> Callable[[dict[str, Tensor]], None] | None:
        return None

    def agree(
        self, reading: Reading, step: int, batches: int, window: Window, gradients: Gradients | None
    ) -> Reading:  # fmt: skip
        return replace(reading, rank=self.rank) if self.rank else reading

    def read(self, numbers: Tensor) -> list[float]:
        """This rank's numbers of the step. One host read."""
        found: list[float] = numbers.tolist()
        return found

    def agree_on_loss(self, reading: Reading, step: int) -> Reading:
        return reading

    def note(self, decision: Decision) -> None:
        return None

    def needs_a_loss(self) -> None:
        """loss_fn returned None: one process simply leaves the batch out."""

    def looked(self, looked: Looked, reading: Reading) -> Looked:
        return looked

    def find_culprits(self, reading: Reading, program: UserStep, window: Window | None) -> Reading:
        return reading

    def name_rank(self, reading: Reading) -> Reading:
        return reading

    def all(self, about: str, flag: bool) -> bool:
        return flag

    def any(self, about: str, flag: bool) -> bool:
        return flag

    def exchange(self, about: str, value: Any) -> list[Any]:
        return [value]

    def good_snapshot(self, ring: SnapshotRing, before: int | None) -> Snapshot | None:
        return ring.newest_good(before=before) or ring.newest_good()

    def buffered(self, buffered: list[BufferedBatch] | None) -> list[BufferedBatch] | None:
        return buffered

    def common_checkpoint(self, store: CheckpointStore) -> tuple[int, Tree, dict[str, Any]] | None:
        loaded = store.load_newest()
        if loaded is not None and loaded[2].get("ranks", 1) != self.size:
            raise UsageError(_OTHER_SIZE.format(loaded[0], loaded[2].get("ranks", 1), self.size))
        return loaded

    def leaving(self, error: BaseException) -> BaseException:
        return error

    def abandon(self) -> None:
        """The step under way ends here: what was begun is let go."""

    def broken(self, fault: Exception, *, in_step: bool = False) -> None:
        """The guard itself failed. Alone it stands down and the loop goes on."""

    def lost_word(self, step: int, batches: int) -> Callable[[dict[str, Tensor]], None] | None:
        return None

    def announce_loss(self, fault: Exception) -> None:
        """The guard failed while a step was being refused."""

    def go_on_together(self) -> None:
        """A refused step has been looked into and recorded: from here on ranks act."""

    def loss_is_finite(self, terms: dict[str, Tensor]) -> bool:
        return math.isfinite(float(terms["loss"]))

    def closing(self, batches: int) -> None:
        """The guard is closed: no one is waiting for it."""


class RankConsensus(SingleRank):
    """This rank's seat among several."""

    def __init__(self, ranks: RankCollectives, num_micro: int, copies: Sequence[float]) -> None:
        super().__init__(ranks.rank)
        self._ranks = ranks
        self._copies = copies
        self.size = ranks.size
        self._num_micro = num_micro
        self._begun = False
        self._agreed: Agreed | None = None
        # Norms of sharded gradients travel with the vector where no clip reduces them anyway.
        self.sums_norms = bool(copies)

    # -- every step

    def before_backward(
        self, step: int, batches: int, window: Window, barrier: FaultBarrier
    ) -> Callable[[dict[str, Tensor]], None] | None:
        """To be called between the forward and the backward that fill a window: this rank's word travels beside the
        backward, or after it where saying it failed. Does not sync."""
        if self.sums_norms:
            return None

        def begin(terms: dict[str, Tensor]) -> None:
            with barrier("ranks", None):
                self._agreed = None
                self._ranks.begin(step, batches, [_loss_first(each) for each in (*window.terms, terms)])
                self._begun = True

        return begin

    def agree(
        self, reading: Reading, step: int, batches: int, window: Window, gradients: Gradients | None
    ) -> Reading:  # fmt: skip
        """The reading with its losses as means over the ranks, the same on every rank to the bit. One host read, or
        none where `read` had the vector."""
        if self.sums_norms:
            micros = [_loss_first(each) for each in window.terms]
            self._ranks.begin(step, batches, micros, squares=self._squares(gradients))
        elif not self._begun:
            self._ranks.begin(step, batches, [_loss_first(_mean_terms(window.terms))])
        names = list(_loss_first(window.terms[0]))[:TERMS]
        num_micro = len(window) if self._begun or self.sums_norms else 1
        self._begun = False
        self._agreed = agreed = self._ranks.finish(len(names), num_micro)
        if agreed.lost_ranks:
            raise OtherRankFailed(_all_finite(agreed))
        losses = [micro[0] for micro in agreed.terms]
        means = {name: sum(micro[i] for micro in agreed.terms) / num_micro for i, name in enumerate(names)}
        means.pop("loss")
        if self.sums_norms and gradients is not None:
            squares = [agreed.squares[index] for index in gradients.indices]
            reading = replace(reading, norms=[math.sqrt(x) for x in squares], grad_norm=math.sqrt(sum(squares)))
        return replace(
            reading,
            loss=sum(losses) / num_micro,
            terms=means if reading.terms else {},
            micro_losses=losses if reading.micro_losses and num_micro > 1 else (),
            num_ranks=self.size,
            local_loss=reading.loss,
            bad_ranks=agreed.bad_ranks,
            rank=agreed.bad_ranks[0] if agreed.bad_ranks else 0,
        )

    def read(self, numbers: Tensor) -> list[float]:
        """The same, together with what the ranks said of the step: one host read for both."""
        return self._ranks.read_with(numbers)

    def _squares(self, gradients: Gradients | None) -> Tensor:
        """Squared norms of this rank's parts, each divided by how many ranks hold the same part. Does not sync."""
        squares = torch.zeros(len(self._copies), dtype=torch.float64, device=self._ranks.device)
        if gradients is not None:
            copies = torch.tensor([self._copies[i] for i in gradients.indices], dtype=torch.float64)
            norms = gradients.norms.to(self._ranks.device, torch.float64)
            squares[list(gradients.indices)] = norms.square() / copies.to(self._ranks.device)
        return squares

    def agree_on_loss(self, reading: Reading, step: int) -> Reading:
        """The same for a loop of which only a loss is known, if at all. One host read."""
        self._ranks.begin(step, step, [{"loss": torch.tensor(reading.loss)}])
        agreed = self._ranks.finish(1)
        return self.name_rank(
            replace(
                reading,
                loss=agreed.terms[0][0],
                num_ranks=self.size,
                local_loss=reading.loss,
                bad_ranks=agreed.bad_ranks,
            )
        )

    def note(self, decision: Decision) -> None:
        self._ranks.note(decision)

    def needs_a_loss(self) -> None:
        raise UserCodeError(
            UsageError(
                f"loss_fn returned None on rank {self.rank}. With several ranks the others wait for this rank's "
                "gradients, so a batch cannot be left out here alone: return a loss of zero that uses the model's "
                "output, such as 0.0 * output.sum()."
            )
        )

    # -- after a refusal

    def looked(self, looked: Looked, reading: Reading) -> Looked:
        """What was found on any rank was found; what must hold everywhere holds only if it does."""
        told = self._ranks.exchange("second look", {**looked, "local_loss": reading.local_loss})
        merged: Looked = {}
        for name, value in looked.items():
            if isinstance(value, bool):
                merged[name] = all(each[name] for each in told)
            else:
                merged[name] = tuple(dict.fromkeys(item for each in told for item in each[name]))
        if "bad_inputs" in looked:
            guilty = {rank for rank, each in enumerate(told) if each["bad_inputs"]}
            merged["bad_ranks"] = tuple(sorted(guilty or reading.bad_ranks))
            merged["rank_losses"] = tuple(
                math.nan if each["local_loss"] is None else float(each["local_loss"]) for each in told
            )
        return merged

    def find_culprits(self, reading: Reading, program: UserStep, window: Window | None) -> Reading:
        """Whose gradients were bad before they were summed, where no rank's loss was: run again without reducing.

        Once for a refused step, if there is a window to run. State has to be restored afterwards.
        """
        if window is not None and not reading.bad_ranks and not math.isfinite(reading.grad_norm):
            bad = not _finite_without_reducing(program, window)
            told = self._ranks.exchange("gradients before reduction", bad)
            culprits = tuple(rank for rank, each in enumerate(told) if each)
            if len(culprits) < self.size:
                reading = replace(reading, bad_ranks=culprits)
        elif not reading.bad_ranks and math.isfinite(reading.grad_norm) and reading.rank_losses:
            # A spike: the rank whose loss stands out.
            worst = max(range(self.size), key=lambda rank: reading.rank_losses[rank])
            reading = replace(reading, bad_ranks=(worst,))
        return self.name_rank(reading)

    def name_rank(self, reading: Reading) -> Reading:
        """The first of the bad ranks is the one that findings speak of."""
        return replace(reading, rank=reading.bad_ranks[0]) if reading.bad_ranks else reading

    def all(self, about: str, flag: bool) -> bool:
        return self._ranks.all(about, flag)

    def any(self, about: str, flag: bool) -> bool:
        return self._ranks.any(about, flag)

    def exchange(self, about: str, value: Any) -> list[Any]:
        return self._ranks.exchange(about, value)

    def good_snapshot(self, ring: SnapshotRing, before: int | None) -> Snapshot | None:
        """The newest snapshot that is finite on every rank, from before a step if there is one."""
        told = self._ranks.exchange("snapshots", [s.step for s in ring.all() if s.good])
        steps = set(told[0]).intersection(*told[1:])
        wanted = [step for step in steps if before is None or step <= before] or list(steps)
        return next((s for s in ring.all() if wanted and s.step == max(wanted)), None)

    def buffered(self, buffered: list[BufferedBatch] | None) -> list[BufferedBatch] | None:
        """The batches to run again, if every rank still has all its own."""
        told = self._ranks.exchange("tape", -1 if buffered is None else len(buffered))
        return buffered if told[0] >= 0 and len(set(told)) == 1 else None

    def common_checkpoint(self, store: CheckpointStore) -> tuple[int, Tree, dict[str, Any]] | None:
        """The newest checkpoint that every rank has whole: a killed run may have written the last one on some only."""
        loaded = store.load_newest()
        sizes = self._ranks.exchange("size", [0, 0] if loaded is None else [loaded[0], loaded[2].get("ranks", 1)])
        for step, size in sizes:
            if size not in (0, self.size):
                raise UsageError(_OTHER_SIZE.format(step, size, self.size))
        while True:
            told = self._ranks.exchange("checkpoint", -1 if loaded is None else loaded[0])
            if len(set(told)) == 1:
                return loaded
            if min(told) < 0:
                missing = ", ".join(str(rank) for rank, step in enumerate(told) if step < 0)
                logger.warning("rank %s has no checkpoint, so all ranks start from step 0", missing)
                return None
            if loaded is not None and loaded[0] > min(told):
                loaded = store.load_newest(at_most=min(told))

    def abandon(self) -> None:
        self._begun, self._agreed = False, None
        self._ranks.abandon()

    def closing(self, batches: int) -> None:
        """Leave a word for a rank that has more batches than this one and would wait for it. Does not wait."""
        self._ranks.say(f"rank {self.rank} closed its guard after {batches} batches")

    def lost_word(self, step: int, batches: int) -> Callable[[dict[str, Tensor]], None] | None:
        """Before backward, of a guard that has failed: join the agreement with that word. Does not sync. None where the
        word of this step is on its way already."""
        if self._begun:
            return None

        def begin(terms: dict[str, Tensor]) -> None:
            self._agreed = None
            self._ranks.begin(step, batches, [_loss_first(terms)], lost=True)

        return begin

    def announce_loss(self, fault: Exception) -> None:
        """The guard of this rank failed while a step was being refused: all ranks go on without, or all stop."""
        if isinstance(fault, OtherRankFailed):
            return
        if self.sums_norms or self._ranks.half_told:
            self.broken(fault)
        self._ranks.announce_loss()

    def go_on_together(self) -> None:
        """Wait for the others: a guard that has failed until now is known to all. Collective."""
        self._ranks.all("a refused step", True)

    def loss_is_finite(self, terms: dict[str, Tensor]) -> bool:
        """Whether every rank's losses are. One host read, or none where the ranks have agreed on this step already."""
        agreed, self._agreed, self._begun = self._agreed, None, False
        return _all_finite(agreed or self._ranks.finish(len(terms), self._num_micro))

    def broken(self, fault: Exception, *, in_step: bool = False) -> None:
        """The guard of this rank failed. `in_step`: it can still take its part in this step as a plain loop, so that
        the others hear of it with the next one at the latest and all go on as plain loops. Else all stop."""
        if in_step and not self.sums_norms:
            return
        first = next(iter(str(fault).splitlines()), "")
        self._ranks.abandon()
        self._ranks.say(f"the guard of rank {self.rank} failed: {type(fault).__name__}: {first}"[:500])
        raise RanksError(
            f"The guard of rank {self.rank} failed ({type(fault).__name__}: {first[:200]}). It cannot decide with the "
            "other ranks any more, and deciding alone would let the weights of the ranks drift apart, so this rank "
            "stops. Resume from the last checkpoint; please report this."
        ) from fault

    def leaving(self, error: BaseException) -> BaseException:
        """This rank is about to stop with `error`: leave a word, so that the others can say why they stopped."""
        self.abandon()
        first = next(iter(str(error).splitlines()), "")
        self._ranks.say(f"rank {self.rank} stopped: {type(error).__name__}: {first}"[:500])
        if _is_lost_connection(error):
            return self._ranks.lost(error)
        return error


def make_consensus(
    model: nn.Module,
    parameters: Sequence[Tensor],
    facts: dict[str, Any],
    *,
    outside: bool,
    num_micro: int,
    clips: bool = True,
) -> SingleRank:
    """A seat for this rank if several train one model together; else no one to ask. Collective if they do."""
    if any(kind.__module__.split(".")[0] == "deepspeed" for kind in type(model).__mro__):
        raise UsageError(
            "A DeepSpeed engine steps its optimizer and skips steps by itself, so no update can be refused exactly. "
            "Watch it with sg.attach(engine, policy='observe'), or use DistributedDataParallel or fully_shard."
        )
    if world_size() < 2:
        return SingleRank()
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise UsageError(
            "This model is wrapped in FullyShardedDataParallel (FSDP1), whose flat shards cannot be judged tensor by "
            "tensor. Use torch.distributed.fsdp.fully_shard (FSDP2) or DistributedDataParallel."
        )
    if not (outside or reduces_gradients(model, parameters)):
        logger.warning(
            "torch.distributed has %d ranks, but the model is neither in DistributedDataParallel nor sharded by "
            "fully_shard: this rank decides alone. Wrap the model before making the guard if they train together.",
            world_size(),
        )
        return SingleRank(dist.get_rank())
    ranks = RankCollectives(parameters[0].device)
    copies: list[float] = []
    if not clips and not outside and any(map(is_sharded, parameters)):
        copies = [num_copies(parameter, ranks.size) for parameter in parameters]
    ranks.introduce(facts, num_micro=num_micro, num_squares=len(copies))
    return RankConsensus(ranks, num_micro, copies)


def reduces_gradients(model: nn.Module, parameters: Sequence[Tensor]) -> bool:
    """Whether torch itself keeps the ranks of this model together: DDP around it or inside, or sharded parameters."""
    ddp = nn.parallel.DistributedDataParallel
    return any(is_sharded(p) for p in parameters) or any(isinstance(m, ddp) for m in model.modules())


class without_reducing:  # reads as words: `with without_reducing(model):`
    """Gradients stay what this rank's own batch made of them. Restored on leaving."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._stack = ExitStack()

    def __enter__(self) -> None:
        for module in self._model.modules():
            if isinstance(module, nn.parallel.DistributedDataParallel):
                # A forward that does not reduce is noted, and the next one would not send buffers round: on this rank.
                noted = module.require_forward_param_sync
                self._stack.callback(setattr, module, "require_forward_param_sync", noted)
                self._stack.enter_context(module.no_sync())
                # Nor are buffers sent round now: a replay may change their dtype on one rank.
                name = "forward_sync_buffers" if hasattr(module, "forward_sync_buffers") else "broadcast_buffers"
                self._stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, False)
            elif hasattr(module, "set_requires_gradient_sync"):
                module.set_requires_gradient_sync(False, recurse=False)  # type: ignore[operator]
                self._stack.callback(module.set_requires_gradient_sync, True, recurse=False)  # type: ignore[arg-type]

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _finite_without_reducing(program: UserStep, window: Window) -> bool:
    program.zero_grad()
    with without_reducing(program.model):
        for batch in window.batches:
            program.micro(batch)
        gradients = gradients_before_reduction(program.model, list(program.parameters))
        finite = gradients is None or all(bool(torch.isfinite(each).all()) for each in gradients)
    forget_unreduced(program)
    return finite


def forget_unreduced(program: UserStep) -> None:
    """Drop gradients that were kept from being reduced, wherever they wait."""
    program.zero_grad()
    for module in program.model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None  # type: ignore[operator]
        group = getattr(state, "_fsdp_param_group", None)
        for held in group.fsdp_params if group is not None else ():
            if "unsharded_accumulated_grad" in vars(held):  # torch 2.15 derives it from the parameter below
                held.unsharded_accumulated_grad = None
            if hasattr(held, "_unsharded_param"):
                held._unsharded_param.grad = None


def _all_finite(agreed: Agreed) -> bool:
    return not agreed.bad_ranks and all(math.isfinite(term) for micro in agreed.terms for term in micro)


def _loss_first(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """The total first: of very many terms only the first ones are averaged over the ranks."""
    return {"loss": terms["loss"], **{name: value for name, value in terms.items() if name != "loss"}}


def _mean_terms(micros: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([micro[name].double() for micro in micros]).mean() for name in micros[0]}


def _is_lost_connection(error: BaseException) -> bool:
    """Whether the user's own collective failed because another rank is gone."""
    original = error.original if isinstance(error, UserCodeError) else error
    if isinstance(original, RanksError):
        return False
    words = str(original).lower()
    named = type(original).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError")
    return named or (isinstance(original, RuntimeError) and ("gloo" in words or "connection closed by peer" in words))
