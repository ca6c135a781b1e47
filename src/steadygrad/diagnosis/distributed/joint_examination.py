"""One diagnosis by several ranks: the rank where it began leads, the others do whatever it does.

A step may hold its own collectives: synchronised batch norm, a loss that gathers from all ranks, DDP's broadcast of
buffers. So no rank can replay one alone. The leader announces each thing it is about to do with its patient, and the
others do the same with theirs. Gradients are not reduced meanwhile, so that what the leader sees is its own doing.

Sharded parameters are made whole for as long as it takes, on all ranks at once; then nothing in a replay depends on
the others but what the user's own step asks of them. If it asks nothing, and the whole state fits into memory, the
leader examines a plain copy of the model by itself. If it does, remedies are not tried: changing one rank's arithmetic
would have to change that of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...detect.tensors.sharded_tensors import is_sharded
from ...detect.tensors.torch_private import TorchDispatchMode, without_dispatch_modes, without_torch_function
from ...engine.distributed.collectives import FailedForAll
from ...engine.distributed.consensus import SingleRank, forget_unreduced, without_reducing
from ...engine.state.training_state import TrainingState
from ...engine.step.user_step import UserStep
from ...records import Diagnosis, from_plain
from ...records.errors import SteadyError
from ..diagnose import diagnose
from ..replay.guard_step import GuardStep
from .parameter_swap import ParameterHolder, everything_swapped, swapped_for
from .unsharded import fits_whole, whole_and_plain

_CLINIC = "clinic"
HALF = (torch.float16, torch.bfloat16)
_TIED = (
    "not diagnosed on the spot: to find the cause of a failure in half precision the step is replayed in full "
    "precision, and one rank cannot do that alone where parameters are sharded or the step itself talks to the other "
    "ranks"
)


def examine_together(
    replayable: GuardStep, program: UserStep, state: TrainingState, consensus: SingleRank, *, leader: int, depth: str
) -> Diagnosis:
    """The leader's diagnosis, on every rank. Collective; state is bit-identical before and after on all of them."""
    model = program.model
    sharded = any(map(is_sharded, program.parameters))
    with whole_parameters(model), without_reducing(model):
        talks = consensus.any("collectives", _communicates(replayable))
        tied = talks or sharded
        if tied and (program.precision != "fp32" or any(p.dtype in HALF for p in model.parameters())):
            return Diagnosis(symptom=replayable.facts.symptom or "none", phase="none", because=_TIED)
        alone = sharded and not talks and depth == "full" and consensus.all("memory", fits_whole(program))
        answer: dict[str, Any] = {}
        if not alone:
            answer = (
                _lead(replayable, program, state, consensus, "origin" if tied else depth)
                if consensus.rank == leader
                else _follow(replayable, program, consensus, leader)
            )
        forget_unreduced(program)
    if alone:
        answer = _apart(replayable, program, state, consensus, leader, depth)
    if "found" not in answer:
        raise FailedForAll(f"the diagnosis failed on rank {leader}: {answer.get('failed', 'no answer')}")
    return from_plain(Diagnosis, answer["found"])


def _communicates(replayable: GuardStep) -> bool:
    """Whether the step itself holds collectives. Runs it once, on all ranks at once."""
    watch = _Collectives()  # type: ignore[no-untyped-call]
    with replayable.examining():
        replayable.restore()
        with watch:
            for batch in replayable.batches:
                replayable.backward(replayable.forward(batch))
    return watch.seen


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices any collective operation."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or func.namespace in ("c10d", "_c10d_functional")
        return func(*args, **(kwargs or {}))


class _LeadingExamination:
    """The leader's patient: every verb is announced before it is done."""

    def __init__(self, replayable: GuardStep, program: UserStep, consensus: SingleRank) -> None:
        self._replayable = replayable
        self._program = program
        self._consensus = consensus

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replayable, name)

    def _announce(self, verb: str) -> None:
        # What the ranks tell each other is no part of the step that is traced.
        with without_torch_function(), without_dispatch_modes():
            self._consensus.exchange(_CLINIC, {"do": verb})

    def restore(self) -> None:
        self._announce("restore")
        forget_unreduced(self._program)
        self._replayable.restore()

    def forward(self, batch: Any) -> Mapping[str, Tensor]:
        self._announce("forward")
        return self._replayable.forward(batch)

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        self._announce("backward")
        self._replayable.backward(terms)

    def commit(self) -> None:
        self._announce("commit")
        self._replayable.commit()


def _lead(
    replayable: GuardStep, program: UserStep, state: TrainingState, consensus: SingleRank, depth: str
) -> dict[str, Any]:
    leading: Any = _LeadingExamination(replayable, program, consensus)
    answer: dict[str, Any]
    try:
        with understudies(program, state):
            answer = {"found": diagnose(leading, depth=depth)}
    except SteadyError:
        raise
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
    told: dict[str, Any] = consensus.exchange(_CLINIC, answer)[consensus.rank]
    return told


def _apart(
    replayable: GuardStep, program: UserStep, state: TrainingState, consensus: SingleRank, leader: int, depth: str
) -> dict[str, Any]:
    """The leader examines a whole copy of the sharded model by itself, while the others wait for its answer."""
    answer: dict[str, Any] = {}
    with whole_and_plain(program, state, mine=consensus.rank == leader):
        if consensus.rank == leader:
            try:
                answer = {"found": diagnose(replayable, depth=depth)}
            except SteadyError:
                raise
            except Exception as error:
                answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
    told: dict[str, Any] = consensus.exchange(_CLINIC, answer)[leader]
    return told


def _follow(replayable: GuardStep, program: UserStep, consensus: SingleRank, leader: int) -> dict[str, Any]:
    """Do what the leader announces with this rank's own batch, until it has its answer."""
    turn, terms = 0, None
    with replayable.examining():
        while True:
            order: dict[str, Any] = consensus.exchange(_CLINIC, None)[leader]
            verb = order.get("do")
            if verb is None:
                return order
            try:
                if verb == "restore":
                    forget_unreduced(program)
                    replayable.restore()
                    turn, terms = 0, None
                elif verb == "forward":
                    terms = replayable.forward(replayable.batches[turn % len(replayable.batches)])
                    turn += 1
                elif verb == "backward" and terms is not None:
                    replayable.backward(terms)
                elif verb == "commit":
                    replayable.commit()
            except SteadyError:
                raise
            except Exception:
                # The user's code refuses to run here as it may on the leader, who will say so.
                terms = None


@contextmanager
def understudies(program: ParameterHolder, state: TrainingState) -> Iterator[None]:
    """Copies of the parameters play their part for the block: an operation may change a parameter's dtype, and torch
    then forgets the hooks by which DDP hears of its gradient. Sharded ones are left alone: nothing operates there."""
    if any(is_sharded(parameter) for parameter in program.parameters):
        yield
        return
    played = everything_swapped(program)
    copies = {key: nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for key, p in played.items()}
    with swapped_for(program, state, copies):
        yield


@contextmanager
def whole_parameters(model: nn.Module) -> Iterator[None]:
    """FSDP2 modules keep their gathered parameters for the block. Collective on entry; restored on leaving."""
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "set_reshard_after_backward")]
    groups = [group for m in modules if (group := m._get_fsdp_state()._fsdp_param_group) is not None]
    kept = [(group, group.post_forward_mesh_info, group.reshard_after_backward) for group in groups]
    try:
        for group in groups:
            group.post_forward_mesh_info, group.reshard_after_backward = None, False
        for module in modules:
            module.unshard()
        yield
    finally:
        for group, mesh_info, after_backward in kept:
            group.post_forward_mesh_info, group.reshard_after_backward = mesh_info, after_backward
        for module in modules:
            module.reshard()
