"""The guard's failing step as a patient: the state is still the one from before the step, so no snapshot is needed.

One copy of the state is kept while the diagnosis works, because surgery may change anything; it is restored before
every replay and after the last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from ...detect.gradient_norms import GradientProbe, clip_exact
from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.torch_private import dynamo_is_loaded
from ...engine.fault_barrier import UserCodeError
from ...engine.record.run_log import RunLog
from ...engine.recovery.preserved_attributes import preserved_attributes
from ...engine.state.earlier_steps import EarlierSteps
from ...engine.state.forward_state import ForwardState
from ...engine.state.training_state import TrainingState, Tree
from ...engine.step.user_step import PRECISIONS, UserStep
from ...engine.step.window import Window
from ...records import Diagnosis, Finding, StepRecord
from ...records.rerun_flag import rerun
from ..isolation.device_memory import forget, release_memory
from ..isolation.resource_limits import NotRestored, in_a_line, limits
from ..locate.bad_rows import num_rows
from .batch_tree import narrow as narrow
from .earlier_step import EarlierStep, changed_from_outside, fails_by_itself, state_at
from .replay_observation import absmaxes
from .replayable import StepFacts
from .state_backup import StateBackup

_SAMPLE_ID_KEYS = ("sample_id", "sample_ids", "example_id", "id", "index", "idx", "indices", "uid")


class GuardStep:
    """One refused window of a guard, replayable. Satisfies `diagnosis.replay.replayable.Replayable`."""

    def __init__(
        self,
        *,
        program: UserStep,
        forward: ForwardState,
        state: TrainingState,
        window: Window,
        step: int,
        symptom: str,
        findings: tuple[Finding, ...],
        history: Sequence[StepRecord],
        names: Mapping[int, str],
        max_grad_norm: float | None,
        others: Sequence[Sequence[Any]] = (),
        past: EarlierSteps | None = None,
    ) -> None:
        self._others, self._past = others, past
        self._expected: Tree | None = None
        self._own_doing = False
        self._earlier: dict[int, EarlierStep | None] = {}
        self._program = program
        self._forward_state = forward
        self._state = state
        self._entry, self._left_over = window.entry, window.left_over
        self._state_backup: StateBackup | None = None
        self._max_grad_norm = max_grad_norm
        self.model = program.model
        self.optimizers = program.optimizers
        self.batches: Sequence[Any] = list(window.batches)
        scaler = program.scaler
        self.facts = StepFacts(
            step=step,
            symptom=symptom,
            findings=findings,
            history=tuple(history),
            autocast=PRECISIONS[program.precision],
            loss_scale=float(scaler._scale) if scaler is not None else None,
            max_grad_norm=max_grad_norm,
            accumulation=program.accumulate,
            device_type=program.device.type,
            sample_ids=tuple(sample_ids_of(batch) or _listed(batch, key) for batch, key in window.fed),
            select_rows=select_rows,
            parameter_names=names,
            dynamic_scale=scaler is not None,
            earlier=self._go_back if past is not None else None,
            kept_steps=tuple(snapshot.step for snapshot in past.snapshots) if past is not None else (),
            bad_at_start=past.bad_at_start if past is not None else None,
        )

    @property
    def training_state(self) -> TrainingState:
        return self._state

    def restore(self) -> None:
        """Back to the moment before the step, bit for bit; or before someone changed the state from outside."""
        if self._expected is not None:
            self.put_in_place(self._expected)
        else:
            self._as_it_was()

    def _as_it_was(self) -> None:
        if self._state_backup is not None:
            self._state_backup.restore()
        assert self._entry is not None
        self._forward_state.restore(self._entry)
        if self._program.restore_reached is not None:
            self._program.restore_reached()
        self._program.zero_grad()
        for parameter, grad in self._left_over:
            parameter.grad = grad.clone()

    def put_in_place(self, tree: Tree) -> None:
        """Another moment's state in the structure of this one."""
        assert self._state_backup is not None
        self._state_backup.restore()
        self._state.restore(tree)
        self._program.forget()

    def prepare(self) -> None:
        """What happened between the steps: nothing, unless the state was changed from outside of the guard.

        Weights that the step's own forward writes (a start from the first batch) are not that: they are written again.
        """
        if self._expected is not None and not self._own_doing:
            self._as_it_was()

    def look_back(self) -> None:
        """Find out whether the state before this step is what the steps before it made. Runs those steps again."""
        if self._past is None or self._expected is not None or any(o.param_groups == [] for o in self.optimizers):
            return
        expected = state_at(self, self._past, self.facts.step)
        self._as_it_was()
        if expected is None:
            return
        bad_weights = not all(map(math.isfinite, absmaxes(self._state.live()["parameters"].values())))
        self._own_doing = bad_weights and fails_by_itself(self, expected)
        self._as_it_was()
        if self._own_doing or changed_from_outside(expected, self._state.live()):
            self._expected = expected

    def _go_back(self, steps: int) -> EarlierStep | None:
        """The run so many steps ago, if it can be got at. Only inside an examination."""
        at = self.facts.step - steps
        if at not in self._earlier and self._past is not None and self._state_backup is not None:
            tree = state_at(self, self._past, at)
            between = self._past.since(at, self.facts.step) if tree is not None else None
            now = self.facts.step
            others = [(now, batches) for batches in (self.batches, *self._others)]
            ahead = [*between, *others] if between is not None else []
            self._earlier[at] = (
                EarlierStep(self, at, tree, ahead, self._past)
                if tree is not None and between is not None and len(between) == steps
                else None
            )
        return self._earlier.get(at)

    def following(self, ahead: int) -> Sequence[Any] | None:
        """What comes next is not known yet, so good batches from just before stand in for it."""
        return self._others[ahead - 1] if ahead <= len(self._others) else None

    def prepare_following(self, ahead: int) -> None:
        """What the guard's loop does between two steps: no gradients left over, a scaler ready for the next."""
        self._program.zero_grad()
        if self._program.scaler is not None:
            self._program.scaler._per_optimizer_states.clear()

    def forward(self, batch: Any) -> Mapping[str, Tensor]:
        with _as_raised():
            terms = self._program.forward(batch)
        assert terms is not None
        return terms

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        with _as_raised():
            self._program.backward(terms)

    def commit(self) -> None:
        """Unscale, clip, step, as the run does."""
        self._program.unscale()
        if (
            self._max_grad_norm is not None
            and (gradients := GradientProbe(self._program.parameters).measure()) is not None
        ):
            clip_exact(gradients, self._max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()

    @contextmanager
    def examining(self) -> Iterator[None]:
        """Around a whole diagnosis. A compiled model is replayed eagerly: a tracer cannot see into compiled code."""
        with ExitStack() as stack:
            stack.enter_context(rerun())
            if dynamo_is_loaded():
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(preserved_attributes([self.model]))
            self._state_backup = StateBackup(self.model, self.optimizers, self._state)
            if limits().lean and self._program.rehearsal is not None:
                self._program.rehearsal.spare_memory()
            try:
                yield
            finally:
                self._leave()
                self._program.zero_grad()  # what was left over was cleared when the step was refused
                self._state_backup = self._expected = None
                self._own_doing = False
                self._earlier.clear()

    def _leave(self) -> None:
        """Restore the state for good. Out of memory, once more when what the diagnosis held has been given back."""
        try:
            self._as_it_was()
        except Exception as error:
            forget(error)
            release_memory()
            try:
                self._as_it_was()
            except Exception as again:
                raise NotRestored(
                    f"The state of the run could not be restored after a diagnosis ({in_a_line(again)}). Training must "
                    "not go on from here: start again from a checkpoint."
                ) from again


@contextmanager
def _as_raised() -> Iterator[None]:
    """The user's own exceptions as they were raised: an operation may well make the user's code impossible to run."""
    try:
        yield
    except UserCodeError as fault:
        raise fault.original from None


def examine_window(
    program: UserStep,
    forward: ForwardState,
    state: TrainingState,
    log: RunLog,
    window: Window,
    step: int,
    findings: tuple[Finding, ...],
    names: Mapping[int, str],
    max_grad_norm: float | None,
    others: Sequence[Sequence[Any]],
    *,
    depth: str,
    past: EarlierSteps | None = None,
    preserve: Iterable[Any] = (),
) -> Diagnosis:
    """Diagnose a refused window of a guard. State is bit-identical before and after."""
    from ..diagnose import diagnose

    replayable = GuardStep(
        program=program, forward=forward, state=state, window=window, step=step, symptom=log.incidents[-1].symptom,
        findings=findings, history=log.recent, names=names, max_grad_norm=max_grad_norm,
        others=others, past=past,
    )  # fmt: skip
    return diagnose(replayable, depth=depth, preserve=preserve)


def select_rows(batch: Any, rows: Sequence[int]) -> Any:
    """The batch with these rows only: every tensor and list as long as the batch is narrowed along its first side.

    A tensor whose second side is that long and whose first is not has its rows there: time first, then the batch.
    """
    size = num_rows(batch)
    return narrow(batch, list(rows), size) if size else batch


def _listed(batch: Any, key: str) -> list[str] | None:
    """The samples of a batch whose key lists one for each row, as a watched loader names it: "samples 5, 2, 9"."""
    listed = key.removeprefix("samples ").removesuffix(", ...").split(", ") if key.startswith("samples ") else []
    whole = not key.endswith(", ...")
    return listed if listed and (len(listed) == num_rows(batch) if whole else len(listed) < num_rows(batch)) else None


def sample_ids_of(batch: Any) -> list[Any] | None:
    """The user's own ids of the rows, where the batch is a mapping that carries them under a usual name."""
    if not isinstance(batch, Mapping):
        return None
    for key in _SAMPLE_ID_KEYS:
        value = batch.get(key)
        if isinstance(value, Tensor) and value.dim() == 1 and not value.is_floating_point():
            return list(value.tolist())
        if isinstance(value, list | tuple) and value and all(isinstance(item, str | int) for item in value):
            return list(value)
    return None
