"""What the ranks of the distributed tests do. Each function runs on every rank, in a process of its own."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import ddp as examples_ddp
import rank_training as training
import torch
import torch.distributed as dist

import steadygrad as sg
from steadygrad.engine.distributed import exit_messages
from steadygrad.engine.distributed.collectives import RankCollectives, default_timeout
from steadygrad.records import Action, Decision

COLLECTIVE_S = 150.0
OURS = (
    "steadygrad.integrations.guard",
    "steadygrad.diagnosis.capsule.write_capsule",
    "steadygrad.diagnosis.replay.guard_step",
    "steadygrad.diagnosis.diagnose",
)
SCENARIOS: dict[str, Callable[..., Any]] = {}


def scenario(function: Callable[..., Any]) -> Callable[..., Any]:
    SCENARIOS[function.__name__] = function
    return function


def run(name: str, rank: int, world: int, folder: Path, options: dict[str, Any]) -> Any:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=options.pop("timeout", COLLECTIVE_S))
    store = dist.FileStore(str(folder / "meeting"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
    return SCENARIOS[name](rank, world, folder, **options)


def ranks_of(world: int, **facts: Any) -> RankCollectives:
    ranks = RankCollectives(torch.device("cpu"))
    ranks.introduce(facts, num_micro=2, num_squares=3)
    return ranks


# -- the agreement itself


@scenario
def vectors(rank: int, world: int, folder: Path) -> Any:
    """Healthy, then a NaN on each rank in turn, then an infinity on the last and a number too large to add up."""
    ranks = ranks_of(world)
    told = []
    for step, bad in enumerate([None, *range(world)]):
        loss = torch.tensor(math.nan if bad == rank else float(rank))
        micros = [{"loss": loss, "extra": torch.tensor(2.0)}, {"loss": torch.tensor(1.0), "extra": torch.tensor(4.0)}]
        ranks.begin(step, step, micros, squares=torch.full((3,), float(rank)))
        agreed = ranks.finish(2, 2)
        told.append([[repr(x) for micro in agreed.terms for x in micro], agreed.bad_ranks, agreed.squares])
        ranks.note(Decision(step=step, actions=(Action.PROCEED if bad is None else Action.SKIP,)))
    ranks.begin(99, 99, [{"loss": torch.tensor(3e38, dtype=torch.float32)}])
    agreed = ranks.finish(1)
    told.append([[repr(x) for micro in agreed.terms for x in micro], agreed.bad_ranks, agreed.lost_ranks])
    ranks.begin(100, 100, [], lost=rank == world - 1)
    told.append(ranks.finish(0).lost_ranks)
    told.append(default_timeout() == timedelta(seconds=COLLECTIVE_S))
    return told


@scenario
def questions(rank: int, world: int, folder: Path) -> Any:
    ranks = ranks_of(world)
    last = rank == world - 1
    return [
        ranks.any("one", last),
        ranks.any("none", False),
        ranks.all("not all", last),
        ranks.all("all", True),
        ranks.exchange("names", {"rank": rank, "long": "x" * (10 * rank), "number": math.nan}),
    ]


@scenario
def differing_guards(rank: int, world: int, folder: Path) -> Any:
    return ranks_of(world, accumulate=2 if rank else 1)


@scenario
def out_of_step(rank: int, world: int, folder: Path, how: str) -> Any:
    """The last rank leaves something out, repeats it, decides otherwise or names other terms."""
    ranks = ranks_of(world)
    odd = rank == world - 1
    for step in range(6):
        batch = step
        if odd and how == "skips a batch" and step >= 3:
            batch = step + 1
        terms = {"loss": torch.tensor(1.0)}
        if odd and how == "names other terms" and step == 3:
            terms["kd"] = torch.tensor(1.0)
        if odd and how == "asks a question" and step == 3:
            ranks.any("something else", True)
        ranks.begin(step, batch, [terms])
        ranks.finish(len(terms))
        alone = odd and how == "decides otherwise" and step == 2
        ranks.note(Decision(step=step, actions=(Action.SKIP if alone else Action.PROCEED,)))
    return "nobody noticed"


@scenario
def one_leaves(rank: int, world: int, folder: Path, how: str) -> Any:
    """The last rank is killed, or raises; the others are left in the middle of a step."""
    ranks = ranks_of(world)
    for step in range(5):
        if rank == world - 1 and step == 3:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            ranks.say(f"rank {rank} stopped at step 3: ValueError: no such file")
            raise ValueError("no such file")
        ranks.begin(step, step, [{"loss": torch.tensor(1.0)}])
        ranks.finish(1)
    return "nobody noticed"


@scenario
def one_is_slow(rank: int, world: int, folder: Path) -> Any:
    ranks = ranks_of(world)
    if rank == 0:
        time.sleep(0.3)
    ranks.begin(0, 0, [{"loss": torch.tensor(float(rank))}])
    return ranks.finish(1).terms


@scenario
def one_is_stuck(rank: int, world: int, folder: Path) -> Any:
    """The last rank stops answering, alive, until the others have given up."""
    ranks = ranks_of(world)
    for step in range(3):
        if rank == world - 1 and step == 2:
            while not (folder / "gave_up").exists():
                time.sleep(0.05)
            return None
        try:
            ranks.begin(step, step, [{"loss": torch.tensor(1.0)}])
            ranks.finish(1)
        except sg.SteadyError:
            (folder / "gave_up").touch()
            raise
    return "nobody noticed"


@scenario
def one_never_makes_a_guard(rank: int, world: int, folder: Path) -> Any:
    exit_messages.CHECK_IN_S = 0.5
    if rank == 1:
        try:
            ranks_of(world)
        finally:
            (folder / "gave_up").touch()
    while not (folder / "gave_up").exists():
        time.sleep(0.01)
    return None


# -- a guard on every rank


@scenario
def skip(
    rank: int, world: int, folder: Path, kind: str, poison: dict[str, Any] | None = None, accumulate: int = 1,
    count: int = 12, left_out: list[int] = (), optimizer: str = "adamw", clip: float | None = 1.0,
    poke: dict[str, int] | None = None, options: dict[str, Any] | None = None, talkative: bool = False,
) -> Any:  # fmt: skip
    """A guarded run with a poisoned batch on some rank, beside a plain run that never saw those batches."""
    training.TALKATIVE = talkative
    healthy = training.batches(rank, count, None)
    without = [batch for index, batch in enumerate(healthy) if index not in left_out]
    reference = training.plain(
        rank, world, kind=kind, optimizer=optimizer, given=without, accumulate=accumulate, clip=clip
    )  # fmt: skip
    given = training.batches(rank, count, poison)
    bits, guard = training.guarded(
        rank, world, kind=kind, optimizer=optimizer, given=given, accumulate=accumulate, clip=clip,
        run_dir=folder / "run", poke=poke, **(options or {}),
    )  # fmt: skip
    story = training.told(guard)
    guard.close()
    return {
        "reference": reference,
        "bits": bits,
        "story": story,
        "same_weights": training.all_equal(bits["weights"]),
        "same_story": training.all_equal(story),
    }


@scenario
def halt(rank: int, world: int, folder: Path) -> Any:
    """From batch 6 on every batch is bad on the last rank."""
    poison = {"how": "nan", "batches": list(range(6, 60)), "ranks": [world - 1]}
    given = training.batches(rank, 60, poison)
    training.guarded(rank, world, kind="ddp", optimizer="adamw", given=given, run_dir=folder / "run")


@scenario
def trouble(rank: int, world: int, folder: Path, how: str, keep: bool = False) -> Any:
    """At its fourth batch the last rank raises, swallows what it raised, is killed, is slow, or breaks the guard."""
    odd = rank == world - 1
    model = training.build("ddp", world)
    optimizer = training.make_optimizer(model, "adamw")
    number = -1

    def loss_fn(model: Any, batch: Any) -> Any:
        if odd and number == 3:
            if how in ("raises", "swallows"):
                raise KeyError("a column that is not there")
            if how == "killed":
                guard._log.journal.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "none":
                return None
        if odd and how == "dawdles":
            time.sleep(0.05)
        return training.loss_fn(model, batch)

    guard = sg.Guard(model, optimizer, loss_fn, max_grad_norm=1.0, run_dir=folder / "run", diagnose="off")
    try:
        stands_down = how in ("guard breaks early", "guard breaks late")
        poison = {"how": "nan", "batches": [6], "ranks": [0]} if stands_down else None
        for number, batch in enumerate(training.batches(rank, 8, poison)):
            if odd and how == "ends early" and number == 3:
                break
            if odd and how == "guard breaks" and number == 3:
                guard._loop.program.backward = lambda terms: 1 / 0  # type: ignore[assignment,method-assign,return-value]
            if odd and how == "guard breaks late" and number == 3:
                guard._loop.parts.probe.measure = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
            if odd and how == "guard breaks early" and number == 3:
                guard._loop.forward.take = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
            try:
                guard.step(batch)
            except KeyError:
                if how != "swallows":
                    raise
    except sg.SteadyError:
        if not keep:
            guard.close()
            raise
    guard.close()
    weights = [p.detach() for p in model.parameters()]
    return {
        "weights": training.digest(weights),
        "finite": all(bool(w.isfinite().all()) for w in weights),
        "standing_down": guard.summary()["standing_down"],
        "step_count": float(optimizer.state[next(model.parameters())]["step"]),
    }


@scenario
def one_incident(rank: int, world: int, folder: Path) -> Any:
    given = training.batches(rank, 8, {"how": "nan", "batches": [5], "ranks": [1]})
    _, guard = training.guarded(rank, world, kind="ddp", optimizer="adamw", given=given, run_dir=folder / "run")
    guard.close()


@scenario
def checkpoints(rank: int, world: int, folder: Path, kind: str, stop: int | None, lose: bool = False) -> Any:
    """A run with a bad batch and checkpoints at 4 and 8, stopped or whole; or resumed after rank 1 lost its newest."""
    given = training.batches(rank, 14, {"how": "nan", "batches": [2], "ranks": [1]})
    newest = folder / "run" / "snapshots" / "rank1" / "step-00000008"
    if lose and rank == 1:
        assert newest.is_dir()
        shutil.rmtree(newest)
    dist.barrier()
    model, began = training.build(kind, world), []

    def loss_fn(model: Any, batch: Any) -> Any:
        began.append(guard.step_number)
        return training.loss_fn(model, batch)

    optimizer = training.make_optimizer(model, "adamw")
    torch.manual_seed(77 + rank)
    guard = sg.Guard(
        model, optimizer, loss_fn, max_grad_norm=1.0, run_dir=folder / "run", diagnose="off", checkpoint_every=4,
        resume=True,
    )  # fmt: skip
    with guard:
        for batch in given[guard.batches_seen : stop]:
            guard.step(batch)
    return {"bits": training.bits(model, optimizer), "began_at": began[0], "skipped": guard._log.ledger.skipped}


@scenario
def ddp_example(rank: int, world: int, folder: Path) -> Any:
    return examples_ddp.main(str(folder / "run"))


@scenario
def other_entry_points(rank: int, world: int, folder: Path, kind: str, door: str, how: str) -> Any:
    """A loop that stays as it is, with a guard attached, beside the plain loop without the bad batch."""
    healthy = training.batches(rank, 10, None)
    without = [batch for index, batch in enumerate(healthy) if index != 4]
    reference = training.plain(rank, world, kind=kind, optimizer="adamw", given=without, accumulate=1)
    given = training.batches(rank, 10, {"how": how, "batches": [4], "ranks": [world - 1]})
    bits, guard = training.attached(rank, world, kind=kind, optimizer="adamw", given=given, door=door)
    summary = {name: guard.summary()[name] for name in ("steps", "applied", "skipped", "guard_faults")}
    return {"reference": reference, "bits": bits, "summary": summary, "headline": guard.incidents[0].headline}


class Counting:
    """Counts the collectives of all groups by their own sequence numbers, whoever asks for them."""

    count = 0

    def __enter__(self) -> Counting:
        self._before = self._all()
        return self

    def __exit__(self, *error: object) -> None:
        self.count = self._all() - self._before

    def _all(self) -> int:
        return sum(group._get_sequence_number_for_group() for group in dist.distributed_c10d._world.pg_map)


@scenario
def norms(rank: int, world: int, folder: Path, kind: str) -> Any:
    """What a guard says of a step's gradients beside what they are, and how many collectives a step has."""
    found: dict[str, Any] = {}
    for name, clip in (("clipped", 1.0), ("unclipped", None)):
        given = training.batches(rank, 4, None)
        model = training.build(kind, world)
        optimizer = training.make_optimizer(model, "sgd")
        whole: list[Any] = []
        for batch in given:
            with Counting() as plain:
                training.loss_fn(model, batch)["loss"].backward()
                if batch is given[2]:
                    whole = [training.whole(p.grad).clone() for p in model.parameters()]
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
        model = training.build(kind, world)
        guard = sg.Guard(
            model, training.make_optimizer(model, "sgd"), training.loss_fn, max_grad_norm=clip, diagnose="off",
            snapshots="off",
        )  # fmt: skip
        for batch in given[:3]:
            outcome = guard.step(batch)
        with Counting() as guarded:
            guard.step(given[3])
        assert outcome.reading is not None
        each = [float(gradient.double().norm()) for gradient in whole]
        found[name] = {
            "norm": outcome.grad_norm, "norms": list(outcome.reading.norms), "of each whole": each,
            "of the whole": math.sqrt(sum(x * x for x in each)), "collectives": guarded.count,
            "of the plain loop": plain.count,
        }  # fmt: skip
        guard.close()
    return found


@scenario
def strangers(rank: int, world: int, folder: Path) -> Any:
    """Ranks that train each a model of its own, in one run directory, with different numbers of batches."""
    model = training.Net()
    guard = sg.Guard(
        model, training.make_optimizer(model, "sgd"), training.loss_fn, run_dir=folder / "run", diagnose="off"
    )
    with guard:
        for batch in training.batches(rank, 4 + rank, {"how": "nan", "batches": [2], "ranks": [1]}):
            guard.step(batch)
    dist.barrier()
    return [
        guard.summary()["applied"],
        guard.summary()["skipped"],
        [f.rank for i in guard.incidents for f in i.findings],
    ]


@scenario
def flat_shards(rank: int, world: int, folder: Path) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(training.Net(norm="layer"), device_id=torch.device("cpu"))
    sg.Guard(model, training.make_optimizer(model, "sgd"), training.loss_fn)
