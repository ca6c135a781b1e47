"""The last good states of a loop that is not ours, and the updates since then, so that poisoned weights can be undone.

Now and then, before a model is called, everything an update can change is copied. Between two copies each update that
applied is remembered: the loop's own lines with the batch they read, how it clipped, its rates, and the schedules it
stepped. Going back puts the newest good copy in place and makes those updates again, as long as each of them gives
the loss and the gradient norm that it gave the first time, to the bit. Where one does not, or cannot be made again,
the run goes on from the copy and the updates since are lost; that is said. The update whose own forward makes a buffer
bad, with a finite loss, is left out: with it the run would be where it was. So is one after which no batch has a finite
loss any more, see `ruined_weights`.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ....detect.gradient_norms import GradientProbe
from ....detect.tensors.nested_tensors import tensors_in
from ....detect.tensors.readable_tensors import why_not_read
from ....diagnosis.isolation.device_memory import forget
from ....engine import validate
from ....engine.recovery.reruns.side_effects import HasEffect, supervised
from ....engine.recovery.reruns.user_state import UserState
from ....engine.state.kept_bytes import KeptBytes
from ....engine.state.rng import put_rng, take_rng
from ....engine.state.snapshot_ring import SnapshotRing
from ....engine.state.training_state import TrainingState, Tree, non_finite
from ....engine.step.trained_parameters import WeakSequence
from ....records import Action, Reading
from ....records.rerun_flag import rerun
from ...optimizer.optimizer_loop import OptimizerLoop
from ...optimizer.snapshot_schedule import SnapshotSchedule
from .loop_lines import LoopPass
from .ruined_weights import all_lost, usual_updates

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop
    from .rank_messages import RankMessages

_NOT_KEPT = torch.zeros(())
_PLAIN_OPTIONS = (bool, int, float, tuple)
_scaled = operator.attrgetter("slice.scaled")
_LARGEST_OF_A_DEVICE = 4 << 30
"""The host memory that a device copies to is slow to get, and this program did not ask for a pause of a minute."""
_IN_USE = 32
"""An optimizer that made no update for so many steps is not part of the training any more."""
_MOST = 512
"""Updates that are remembered at the most: making more of them again would take too long."""


@dataclass(slots=True)
class AppliedUpdate:
    """One update that was applied, with what it takes to make it again."""

    step: int
    loop_passes: list[LoopPass]
    losses: list[float | Tensor]
    grad_norm: float
    clip: float | None
    groups: list[dict[str, Any]]
    followed: list[Callable[[], Any]]
    """What the loop did after it: its schedules' steps, its averages."""


@dataclass(frozen=True, slots=True)
class RollbackResult:
    """What came of going back."""

    step: int
    again: int
    lost: int
    why: str
    left_out: int | None = None
    """The step whose update made the state bad, where it was found on the way."""
    harm: str = ""
    """What that update did, as a clause."""

    def __str__(self) -> str:
        place = f"the state before step {self.step} was restored"
        if self.left_out is not None:
            made = f", {self.again} of the updates since made again to the same losses to the bit" if self.again else ""
            lost = f"; the {self.lost} after it are lost: {self.why}" if self.lost else ""
            return f"{place}{made}, and step {self.left_out}, {self.harm}, was left out{lost}"
        if not self.lost:
            since = "the update since was" if self.again == 1 else f"the {self.again} updates since were"
            return f"{place} and {since} made again, to the same losses to the bit"
        since = "the update since is" if self.lost == 1 else f"the {self.lost} updates since are"
        return f"{place}; {since} lost: {self.why}"


class GoodStates:
    """One process's last good states and the updates since. Off where the policy only observes or memory is short."""

    def __init__(self, watch: ProcessLoop) -> None:
        self._watch = watch
        self._of: tuple[int, ...] = ()
        self._loops: list[OptimizerLoop] = []
        self._last: weakref.WeakKeyDictionary[OptimizerLoop, int] = weakref.WeakKeyDictionary()
        self._state: TrainingState | None = None
        self._ring: SnapshotRing | None = None
        self._snapshot_schedule: SnapshotSchedule | None = None
        self._updates: deque[AppliedUpdate] = deque()
        self._usual: list[AppliedUpdate] = []
        """Updates whose batches show that the weights of now are of no use."""
        self._kept = KeptBytes()
        self._why_not = ""
        self._due = True
        self._prepared: AppliedUpdate | str | None = None

    # -- while all is well

    def window_begins(self, in_use: Sequence[tuple[OptimizerLoop, Optimizer]] | None = None) -> None:
        """Before the first call of a model since an update: copy the state if it is time. Does not sync on a CPU.

        `in_use` are the optimizers of the training under way, if they were just listed."""
        watch = self._watch
        if not watch.policy.acts:
            return
        self._look_around(in_use)
        ring, snapshot_schedule, step = self._ring, self._snapshot_schedule, watch.step
        if ring is None or snapshot_schedule is None or not (self._due or snapshot_schedule.due(step)):
            return
        if watch.alone and not self._due and not snapshot_schedule.cheap():
            return  # several ranks copy at the same steps, whatever it costs on one of them
        self._due = False
        snapshot_schedule.take(step)
        if (entry := watch.models.entry) is not None:
            ring.all()[-1].place = entry.place  # taken a moment before, with the same random states
        while self._updates and self._updates[0].step < ring.steps[0]:
            self._drop_oldest()

    def update_begins(self, loop: OptimizerLoop, step: int) -> None:
        """Before an update: let the device finish copying what is about to change. Does not stop the host."""
        self._last[loop], self._prepared = step, None
        if loop not in self._loops and self._watch.policy.acts and loop.parameters[0].device.type == "cpu":
            self._first_update(step)
        if self._ring is not None:
            self._ring.wait_for_copies()

    def _first_update(self, step: int) -> None:
        """An optimizer is heard of only at its first update: the weights are still those before it, and what the
        forward changed is known as it was. On a CPU only: a device copies later, when the pool may have that memory."""
        self._look_around()
        entry, schedule = self._watch.models.entry, self._snapshot_schedule
        if entry is not None and schedule is not None and self._state is not None and self._ring is not None:
            schedule.take(step, self._state.forward.tree_at(entry))
            self._ring.all()[-1].place = entry.place

    def landed(self, optimizer: Optimizer, reading: Reading | None) -> None:
        """Remember the update just made. Host work only: a few names, no copy."""
        if self._ring is None or self._ring.last_step < 0 or reading is None:
            return
        prepared, self._prepared = self._prepared, None
        found = self._remember(optimizer) if prepared is None else prepared
        if isinstance(found, str):
            self._why_not = found
            self._forget_updates()
            return
        found.step, found.grad_norm = reading.step, reading.grad_norm
        self._updates.append(found)
        for loop_pass in found.loop_passes:
            self._kept.add(loop_pass.pieces)
        while self._updates and (self._kept.too_many or len(self._updates) > _MOST):
            self._drop_oldest()
            self._why_not = "there were too many to keep"

    def _drop_oldest(self) -> None:
        for loop_pass in self._updates.popleft().loop_passes:
            self._kept.remove(loop_pass.pieces)

    def followed(self, optimizer: Any, call: Callable[[], Any]) -> None:
        """A schedule or an average of the loop went on."""
        if self._updates:
            self._updates[-1].followed.append(call)

    def prepare(self, optimizer: Optimizer) -> None:
        """The update is under way: what `landed` takes, except for its numbers."""
        if self._ring is not None and self._ring.last_step >= 0:
            self._prepared = self._remember(optimizer)

    def _remember(self, optimizer: Optimizer) -> AppliedUpdate | str:
        watch = self._watch
        loop_passes = list(watch.slices.loop_passes)
        if not watch.alone:
            return "one rank cannot make that again without the others"
        if len(self._loops) != 1 or self._loops[0].living is not optimizer:
            return "several optimizers step in turn"
        if not loop_passes or len(loop_passes) != len(watch.backwards.losses) or watch.models.lost_calls:
            return watch.slices.why_not or "their lines could not be cut out of the loop"
        if getattr(optimizer, "grad_scale", None) is not None or any(map(_scaled, loop_passes)):
            return "their loss was scaled"
        if watch.clipping.unknown:
            return "their gradients were clipped in a way of the loop's own"
        losses: list[float | Tensor] = []
        for place, loop_pass in enumerate(loop_passes):
            for tensor in tensors_in(loop_pass.batch):
                if why_not_read(tensor) is not None:
                    return "they read tensors of a kind that is not kept"
                if tensor.grad_fn is not None:
                    return "they read what an earlier step computed"  # and keeping it would keep that step's graph
            # A loss is computed on top of all activations: on a CPU its few bytes would keep the memory below from
            # being freed. As a number it is exact.
            losses.append(float(loop_pass.loss) if loop_pass.loss.is_cpu else loop_pass.loss)
            loop_passes[place] = loop_pass.without_loss(_NOT_KEPT)
        return AppliedUpdate(-1, loop_passes, losses, math.nan, watch.clipping.limit, _plain_groups(optimizer), [])

    def _look_around(self, in_use: Sequence[tuple[OptimizerLoop, Optimizer]] | None = None) -> None:
        """One state for all optimizers in use; made anew when that changes, another model was found, or parts of one
        were replaced."""
        watch = self._watch
        loops, optimizers, first = list[OptimizerLoop](), list[Optimizer](), watch.step - _IN_USE
        for loop, optimizer in watch.ledger.in_use_at(watch) if in_use is None else in_use:
            if self._last.get(loop, -_IN_USE) > first:
                loops.append(loop)
                optimizers.append(optimizer)
        forward = watch.models.forward_state()
        for optimizer in optimizers:
            watch.loop_of(optimizer)
        parameters_now = [id(loop.parameters) for loop in loops]
        key = (id(forward), forward.num_modules, forward.changes, *map(id, loops), *parameters_now)
        if key == self._of:
            return
        self._of, self._loops, self._due, self._ring = key, loops, True, None
        self._forget_updates()
        if not loops:
            return
        parameters = {
            f"{number}.{name}": parameter
            for number, loop in enumerate(loops)
            for name, parameter in loop.named_parameters().items()
        }
        schedules = _Several(watch.followers, optimizers)
        self._state = TrainingState(
            parameters=parameters, optimizers=optimizers, forward=forward, scheduler=schedules
        )  # fmt: skip
        device = loops[0].parameters[0].device
        if device.type != "cpu":
            size = sum(tensor.numel() * tensor.element_size() for _, tensor in self._state.floating_tensors())
            if size > _LARGEST_OF_A_DEVICE:
                watch.ledger.event("no_snapshots", bytes=size)
                return
        self._ring = ring = validate.make_ring("auto", self._state, device, watch.policy)
        self._snapshot_schedule = SnapshotSchedule(ring, watch.policy.snapshot_every) if ring is not None else None

    def let_go(self) -> None:
        """Keep no state and no batch alive; what is needed is made anew with the next window."""
        self._of, self._loops, self._state, self._ring, self._snapshot_schedule, self._due = (
            (),
            [],
            None,
            None,
            None,
            True,
        )
        self._forget_updates()

    def _forget_updates(self) -> None:
        self._prepared, self._usual = None, []
        self._updates.clear()
        self._kept.clear()

    # -- when it is not

    def kept_at(self, loop: OptimizerLoop, step: int, before: int) -> tuple[Tree, list[AppliedUpdate]] | None:
        """The state that was copied before this step, in the names of its optimizer alone, and the updates from there
        up to `before`. None where there is no such copy, or not all of the updates can be made again."""
        snapshot = next((s for s in self._ring.good() if s.step == step), None) if self._ring is not None else None
        if snapshot is None or self._state is None or self._loops != [loop]:
            return None
        updates = [landed for landed in self._updates if step <= landed.step < before]
        if len(updates) + self._watch.refused_since(step) != before - step or not updates:
            return None
        if any(loop_pass.overwritten for landed in updates for loop_pass in landed.loop_passes):
            return None
        tree = {key: snapshot.tree[key] for key in ("optimizers", "buffers", "counters", "extras")}
        names = snapshot.tree["parameters"].items()
        return {**tree, "parameters": {name.partition(".")[2]: value for name, value in names}}, updates

    def states_for(self, loop: OptimizerLoop, reading: Reading, words: RankMessages | None) -> list[int]:
        """The steps to which all ranks can go back if the weights, moments or buffers are bad, or where a streak of bad
        steps is due for it and shows them to be of no use: else nothing helps."""
        bad = reading.bad_parameters or reading.bad_state or reading.bad_buffers
        self._usual, ledger = [], loop.log.ledger
        due = (ledger.streak + 1, Action.ROLLBACK) in self._watch.policy.escalation and not reading.bad_inputs
        if reading.undone or not (bad or (due and self._watch.alone and not ledger.raises_rate)):
            return []
        with self._watch.barrier("snapshots", list[int]()) as answer:
            answer.value = self.steps if bad else self.steps_before_ruin()
        return words.in_common(answer.value) if words is not None else answer.value

    @property
    def steps(self) -> list[int]:
        """The steps before which a good state was copied, newest last. Waits for copies on a GPU."""
        return [snapshot.step for snapshot in self._ring.good()] if self._ring is not None else []

    def steps_before_ruin(self) -> list[int]:
        """The same where the weights are finite and of no use any more, without copies of them; else none. Runs the
        program's own lines."""
        if len(self._loops) != 1 or self._state is None:
            return []
        self._usual = usual_updates(self._updates)
        overwritten = any(loop_pass.overwritten for update in self._usual for loop_pass in update.loop_passes)
        if not self._usual or overwritten or not self._ruined():
            self._usual = []
        return [step for step in self.steps if self._usual and step <= self._usual[-1].step]

    def _ruined(self, *, finite: bool = False) -> bool:
        """Whether batches that had a usual loss have none with the weights of now. Leaves the state as it is."""
        assert self._state is not None
        forward, now = self._state.forward, take_rng()
        entry = forward.take()
        try:
            with rerun():
                return all_lost(self._usual, self._supervised_again, finite=finite)
        except HasEffect:
            return False
        except Exception as error:  # their lines, out of their place, may raise anything; or memory ran out
            forget(error)
            return False
        finally:
            forward.restore(entry)
            put_rng(now)

    def go_back(self, before: int, allowed: Sequence[int]) -> RollbackResult | None:
        """Put the newest good state of those allowed in place and make the updates since again. None if there is none.

        `before` is the step that was refused: it is not made again. Runs the program's own lines.
        """
        ring, state = self._ring, self._state
        good = [snapshot for snapshot in ring.good() if snapshot.step in allowed] if ring is not None else []
        if ring is None or state is None or not good:
            return None
        snapshot = good[-1]
        updates = [landed for landed in self._updates if landed.step >= snapshot.step]
        num_since = before - snapshot.step
        now, rewound = take_rng(), state.forward.rng_without(snapshot.place)
        rates = [(o, _plain_groups(o)) for loop in self._loops if (o := loop.living) is not None]
        state.restore(snapshot.tree)
        why = self._why_not_again(updates, num_since, snapshot.step) or self._make_again(state, updates)
        culprit = why if isinstance(why, AppliedUpdate) else None
        if culprit is not None:
            state.restore(snapshot.tree)
            why = self._make_again(state, updates[: updates.index(culprit)])
        if why:
            state.restore(snapshot.tree)
            state.forward.forget_since(snapshot.place)
            put_rng(rewound)
        else:
            put_rng(now)
            if culprit is None or not culprit.followed:  # else the rate is that of a schedule which went on too far
                for optimizer, kept in rates:
                    put_groups(optimizer, kept)  # with what the loop set by hand since the last update
        harm = "after which no batch had a usual loss" if self._usual else "which left state non-finite"
        self._forget_updates()
        ring.discard_after(snapshot.step)
        self._due = True
        if culprit is not None and not why:
            place = updates.index(culprit)
            lost = len(updates) - place - 1
            return RollbackResult(snapshot.step, place, lost, "they were computed from it", culprit.step, harm)
        lost = num_since if why else 0
        return RollbackResult(step=snapshot.step, again=num_since - lost, lost=lost, why=str(why))

    def _why_not_again(self, updates: list[AppliedUpdate], num_since: int, start: int) -> str:
        """Why the updates since a step cannot be made again, as a clause; empty if they can."""
        if len(updates) + self._watch.refused_since(start) != num_since:
            return self._why_not or "they were not kept"
        if any(loop_pass.overwritten for landed in updates for loop_pass in landed.loop_passes):
            return "their batches were written to since"
        return ""

    def _make_again(self, state: TrainingState, updates: list[AppliedUpdate]) -> str | AppliedUpdate:
        """The updates since the snapshot once more. Empty if all of them came out the same; else why not, as a clause,
        or the update that made the state non-finite, or of no use."""
        at_first = set(non_finite(state.floating_tensors()))
        try:
            for number, landed in enumerate(updates):
                with rerun():
                    same = self._update(landed, self._supervised_again if number == 0 else LoopPass.again)
                if not same:
                    return "made again they do not come out the same"
                if not at_first.issuperset(non_finite(state.floating_tensors())):
                    return landed
                if self._usual and landed.step >= self._usual[-1].step and self._ruined(finite=True):
                    return landed
        except HasEffect as effect:
            return f"running their lines again would have an effect: {effect}"
        except Exception as error:  # their lines, out of their place, may raise anything
            return f"their lines raised {type(error).__name__} when they were run again"
        return ""

    def _supervised_again(self, loop_pass: LoopPass, batch: Mapping[str, Any], state: UserState) -> Tensor:
        """A run that ends, with HasEffect, at a line which would leave a trace that is not undone."""
        assert self._state is not None
        owned = tensors_in([*self._state.live().values(), [p.grad for loop in self._loops for p in loop.parameters]])
        with supervised(state, owned):
            return loop_pass.again(batch, state)

    def _update(self, landed: AppliedUpdate, again: Callable[..., Tensor]) -> bool:
        """One update again; whether it had the loss and the gradient that it had the first time."""
        (loop,) = self._loops
        for parameter in loop.parameters:
            parameter.grad = None
        for loop_pass, before in zip(landed.loop_passes, landed.losses, strict=True):
            loss = again(loop_pass, loop_pass.batch, loop_pass.noted())
            if float(loss.detach()) != float(before):
                return False
            loss.backward()  # type: ignore[no-untyped-call]
        gradients = GradientProbe(loop.parameters).measure()
        if gradients is None or float(gradients.total) != landed.grad_norm:
            return False
        if landed.clip is not None:
            torch.nn.utils.clip_grad_norm_(loop.parameters, landed.clip)
        put_groups(loop.optimizer, landed.groups)
        loop.optimizer.step()
        for parameter in loop.parameters:
            parameter.grad = None
        for call in landed.followed:
            self._watch.followers.again(call)
        return True


class _Several:
    """The schedules and averages of some optimizers as one thing with a state, whenever they come and go."""

    def __init__(self, followers: Any, optimizers: Sequence[Optimizer]) -> None:
        self._followers, self._optimizers = followers, WeakSequence(optimizers)

    def state_dict(self) -> list[tuple[Any, Any]]:
        return [(_Same(thing), thing.state_dict()) for thing in self._followers.of(self._optimizers)]

    def load_state_dict(self, states: list[tuple[Any, Any]]) -> None:
        for thing, state in states:
            if (it := thing.it()) is not None:
                it.load_state_dict(state)


class _Same:
    """Leads to the same object when its surroundings are copied, as long as the program keeps it."""

    def __init__(self, it: Any) -> None:
        self.it = weakref.ref(it)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Same:
        return self


def _plain_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Rates and the like as they are now, of each group; not what is kept in tensors."""
    return [
        {key: value for key, value in group.items() if issubclass(type(value), _PLAIN_OPTIONS)}
        for group in optimizer.param_groups
    ]


def put_groups(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> None:
    """Put the rates and the like in force that each group had."""
    for group, kept in zip(optimizer.param_groups, groups, strict=True):
        group.update(kept)
