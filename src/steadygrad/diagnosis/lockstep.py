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
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..detect.shards import is_sharded
from ..engine.program import StepProgram
from ..engine.ranks import FailedForAll
from ..engine.ranks_council import Alone, forget_unreduced, without_reducing
from ..engine.training_state import TrainingState
from ..errors import SteadyError
from ..records import Diagnosis, from_plain
from .bedside import GuardPatient
from .cast import Cast, everything_played, played_by
from .diagnose import diagnose
from .standins import fits_whole, whole_and_plain

_CLINIC = "clinic"
HALF = (torch.float16, torch.bfloat16)
_TIED = (
    "not diagnosed on the spot: to find the cause of a failure in half precision the step is replayed in full "
    "precision, and one rank cannot do that alone where parameters are sharded or the step itself talks to the other "
    "ranks"
)


def examine_together(
    patient: GuardPatient, program: StepProgram, state: TrainingState, council: Alone, *, leader: int, depth: str
) -> Diagnosis:
    """The leader's diagnosis, on every rank. Collective; state is bit-identical before and after on all of them."""
    model = program.model
    sharded = any(map(is_sharded, program.parameters))
    with whole_parameters(model), without_reducing(model):
        talks = council.any("collectives", _communicates(patient))
        tied = talks or sharded
        if tied and (program.precision != "fp32" or any(p.dtype in HALF for p in model.parameters())):
            return Diagnosis(symptom=patient.facts.symptom or "none", phase="none", because=_TIED)
        alone = sharded and not talks and depth == "full" and council.all("memory", fits_whole(program))
        answer: dict[str, Any] = {}
        if not alone:
            answer = (
                _lead(patient, program, state, council, "origin" if tied else depth)
                if council.rank == leader
                else _follow(patient, program, council, leader)
            )
        forget_unreduced(program)
    if alone:
        answer = _apart(patient, program, state, council, leader, depth)
    if "found" not in answer:
        raise FailedForAll(f"the diagnosis failed on rank {leader}: {answer.get('failed', 'no answer')}")
    return from_plain(Diagnosis, answer["found"])


def _communicates(patient: GuardPatient) -> bool:
    """Whether the step itself holds collectives. Runs it once, on all ranks at once."""
    watch = _Collectives()  # type: ignore[no-untyped-call]
    with patient.examining():
        patient.restore()
        with watch:
            for batch in patient.batches:
                patient.backward(patient.forward(batch))
    return watch.seen


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices any collective operation."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or func.namespace in ("c10d", "_c10d_functional")
        return func(*args, **(kwargs or {}))


class _Leading:
    """The leader's patient: every verb is announced before it is done."""

    def __init__(self, patient: GuardPatient, program: StepProgram, council: Alone) -> None:
        self._patient = patient
        self._program = program
        self._council = council

    def __getattr__(self, name: str) -> Any:
        return getattr(self._patient, name)

    def _announce(self, verb: str) -> None:
        # What the ranks tell each other is no part of the step that is traced.
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            self._council.exchange(_CLINIC, {"do": verb})

    def restore(self) -> None:
        self._announce("restore")
        forget_unreduced(self._program)
        self._patient.restore()

    def forward(self, batch: Any) -> Mapping[str, Tensor]:
        self._announce("forward")
        return self._patient.forward(batch)

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        self._announce("backward")
        self._patient.backward(terms)

    def commit(self) -> None:
        self._announce("commit")
        self._patient.commit()


def _lead(
    patient: GuardPatient, program: StepProgram, state: TrainingState, council: Alone, depth: str
) -> dict[str, Any]:
    leading: Any = _Leading(patient, program, council)
    answer: dict[str, Any]
    try:
        with understudies(program, state):
            answer = {"found": diagnose(leading, depth=depth)}
    except SteadyError:
        raise
    except Exception as error:
        answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
    told: dict[str, Any] = council.exchange(_CLINIC, answer)[council.rank]
    return told


def _apart(
    patient: GuardPatient, program: StepProgram, state: TrainingState, council: Alone, leader: int, depth: str
) -> dict[str, Any]:
    """The leader examines a whole copy of the sharded model by itself, while the others wait for its answer."""
    answer: dict[str, Any] = {}
    with whole_and_plain(program, state, mine=council.rank == leader):
        if council.rank == leader:
            try:
                answer = {"found": diagnose(patient, depth=depth)}
            except SteadyError:
                raise
            except Exception as error:
                answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
    told: dict[str, Any] = council.exchange(_CLINIC, answer)[leader]
    return told


def _follow(patient: GuardPatient, program: StepProgram, council: Alone, leader: int) -> dict[str, Any]:
    """Do what the leader announces with this rank's own batch, until it has its answer."""
    turn, terms = 0, None
    with patient.examining():
        while True:
            order: dict[str, Any] = council.exchange(_CLINIC, None)[leader]
            verb = order.get("do")
            if verb is None:
                return order
            try:
                if verb == "restore":
                    forget_unreduced(program)
                    patient.restore()
                    turn, terms = 0, None
                elif verb == "forward":
                    terms = patient.forward(patient.batches[turn % len(patient.batches)])
                    turn += 1
                elif verb == "backward" and terms is not None:
                    patient.backward(terms)
                elif verb == "commit":
                    patient.commit()
            except SteadyError:
                raise
            except Exception:
                # The user's code refuses to run here as it may on the leader, who will say so.
                terms = None


@contextmanager
def understudies(program: Cast, state: TrainingState) -> Iterator[None]:
    """Copies of the parameters play their part for the block: an operation may change a parameter's dtype, and torch
    then forgets the hooks by which DDP hears of its gradient. Sharded ones are left alone: nothing operates there."""
    if any(is_sharded(parameter) for parameter in program.parameters):
        yield
        return
    played = everything_played(program)
    copies = {key: nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for key, p in played.items()}
    with played_by(program, state, copies):
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
