"""Going back in time behind a guard: a snapshot put in place, and the good batches since then run again.

Nothing is saved that recovery does not hold anyway; a state in between is made by running there, once. So it is done
for a few steps only, and only while a diagnosis is under way, which restores everything at its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.nested_tensors import tensors_in
from ...engine.state.earlier_steps import EarlierSteps
from ...engine.state.training_state import Tree, copy_tree
from ..isolation import device_memory as memory
from ..isolation.resource_limits import fits
from ..locate.external_changes import out_of_range
from .replay_observation import absmax, absmaxes

if TYPE_CHECKING:
    from .guard_step import GuardStep

MAX_STEPS = 12
"""Further than this from a snapshot, going there would cost more than the diagnosis."""


class EarlierStep:
    """The same run some steps before, with the steps that really followed. Satisfies `FollowedReplayable`.

    Lives inside the examination of the later patient, whose verbs it uses.
    """

    def __init__(
        self, later: GuardStep, step: int, tree: Tree, steps: Sequence[tuple[int, Sequence[Any]]], past: EarlierSteps
    ) -> None:
        """`steps` are (number, batches) of this step and those that followed it."""
        self._later, self._tree, self._steps, self._past = later, tree, steps, past
        self.model, self.optimizers = later.model, later.optimizers
        self.batches: Sequence[Any] = steps[0][1]
        self.facts = replace(later.facts, step=step, earlier=None)

    def restore(self) -> None:
        self._later.put_in_place(self._tree)

    def prepare(self) -> None:
        """The learning rate as it was in that step, whoever had set it."""
        set_rate(self._later, self._steps[0][0])

    def following(self, ahead: int) -> Sequence[Any] | None:
        return self._steps[ahead][1] if ahead < len(self._steps) else None

    def prepare_following(self, ahead: int) -> None:
        self._later.prepare_following(ahead)
        if self._past.scheduler is not None:
            self._past.scheduler.step()
        set_rate(self._later, self._steps[ahead][0])

    def forward(self, batch: Any) -> Mapping[str, Tensor]:
        return self._later.forward(batch)

    def backward(self, terms: Mapping[str, Tensor]) -> None:
        self._later.backward(terms)

    def commit(self) -> None:
        self._later.commit()

    @contextmanager
    def examining(self) -> Iterator[None]:
        yield


def state_at(replayable: GuardStep, past: EarlierSteps, step: int) -> Tree | None:
    """Everything as it was before this step, by running there from the nearest snapshot; None where that is too far.

    Runs up to MAX_STEPS steps and keeps one copy of the state.
    """
    behind = [snapshot for snapshot in past.snapshots if snapshot.step <= step]
    batches = past.since(behind[-1].step, step) if behind else None
    if batches is None or len(batches) > MAX_STEPS:
        return None
    replayable.put_in_place(behind[-1].tree)
    for ahead, (number, window) in enumerate(batches):
        if ahead:
            replayable.prepare_following(ahead)
        set_rate(replayable, number)
        for batch in window:
            replayable.backward(replayable.forward(batch))
        replayable.commit()
        if past.scheduler is not None:
            past.scheduler.step()
    live = replayable.training_state.live()
    copier = memory.copied if fits(tensors_in(live), beside_a_step=True) else memory.copied_to_host
    tree: Tree = copy_tree(live, copier)
    return tree


def set_rate(replayable: GuardStep, step: int) -> None:
    """Put the recorded learning rate of a step in force: the user's own code may have set it between the steps."""
    recorded = next((record.lr for record in replayable.facts.history if record.step == step), 0.0)
    groups = [group for optimizer in replayable.optimizers for group in optimizer.param_groups]
    now = max((float(group["lr"] or 0.0) for group in groups), default=0.0)
    if recorded > 0 and now > 0 and not math.isclose(recorded, now, rel_tol=1e-6):
        for group in groups:
            group["lr"] = group["lr"] * (recorded / now)


def changed_from_outside(there: Tree, here: Tree) -> bool:
    """Whether a weight, buffer or moment holds values now that no step gave it, far outside of what it held.

    Where moments are bad too, an optimizer had its hand in it and it was no change of weights alone.
    """
    if not all(map(math.isfinite, absmaxes(tensors_in(here["optimizers"])))):
        return False
    for part in ("parameters", "buffers"):
        for name, old in there[part].items():
            new = here[part].get(name)
            if not isinstance(new, Tensor) or new.shape != old.shape:
                continue
            # A weight that is NaN was made so by an update more likely than by anyone else.
            known = part == "buffers" or math.isfinite(absmax(new))
            if known and out_of_range(old.to(new.device), new.detach()):
                return True
    moments = zip(tensors_in(there["optimizers"]), tensors_in(here["optimizers"]), strict=False)
    return any(
        old.shape == new.shape and old.dim() > 0 and out_of_range(old.to(new.device), new.detach())
        for old, new in moments
    )


def fails_by_itself(replayable: GuardStep, before: Tree) -> bool:
    """Whether the step goes wrong from this state too: then what is different now it wrote itself, in its forward."""
    replayable.put_in_place(before)
    try:
        for batch in replayable.batches:
            terms = replayable.forward(batch)
            if not all(math.isfinite(float(term.detach())) for term in terms.values()):
                return True
            replayable.backward(terms)
    except Exception:  # whatever the user's code raises there, it says nothing about this state
        return False
    return any(
        not math.isfinite(absmax(p.grad)) for p in replayable.model.parameters() if p.grad is not None
    )  # fmt: skip
