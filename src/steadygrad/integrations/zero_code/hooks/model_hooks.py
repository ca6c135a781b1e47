"""The models of a program: found when an optimizer is made, listened to at their outermost call.

Before the first call since an update it takes what the forward may move (running statistics, counters, random
numbers); a refused update restores that. The outermost call is the root's where the program calls the root. A
program that calls parts of it (`self.net(x)` inside a larger module) is met one floor further down after a step.

Models of trainings that have ended rest: they cost nothing, and the next training call of one wakes it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ....detect.loop.model_calls import ModeModules, callable_parts
from ....detect.tensors.graph_capture import capturing
from ....detect.tensors.nested_tensors import tensors_in
from ....detect.tensors.torch_private import innermost_transform, tracing_state
from ....engine.fault_barrier import FaultBarrier
from ....engine.state.forward_state import Entry, ForwardState
from ....engine.state.kept_bytes import KeptBytes, pieces_of
from ....engine.state.moving_tensors import restore_what_turned_bad
from ....engine.state.rng import RngState, put_rng
from ....records.errors import SteadyError
from .call_log import MAX_CALLS, Call, inner, keep_output_gradients, note_call
from .find_models import ProgramModules

if TYPE_CHECKING:
    from ..process_loop import ProcessLoop

_MAX_LOOKS = 12
_AUDITED_STEPS = 3


class ModelHooks:
    """Everything that is known of the program's models; the loop hears of each call that is kept."""

    def __init__(self, watch: ProcessLoop) -> None:
        self._barrier, self._watch = watch.barrier, watch
        self.all = ProgramModules()
        self._heard: dict[int, weakref.ref[nn.Module]] = {}
        self._undo: dict[int, tuple[Callable[[], None], ...]] = {}
        self._roots: list[weakref.ref[nn.Module]] | None = None
        self._owned: dict[int, int] = {}
        """Which module each known parameter was found in, both by identity."""
        self._called_once: set[int] = set()
        self._resting: dict[int, list[int]] = {}
        """Modules that rest, by identity, each with those that wake with it."""
        self._looks = 0
        self._forward: ForwardState | None = None
        self._forward_of: tuple[int, ...] = ()
        self._entry: Entry | None = None
        self._entry_is_old = True
        self._inside: list[int] = []
        self._audits = self._left_out = 0
        self._rng: RngState | None = None
        self._kept = KeptBytes()
        self.calls: list[Call] = []
        self.lost_calls = 0
        self.trainer_gone = False
        """Whether the program has dropped an optimizer since the last window began."""

    # -- finding them

    def adopt(self, parameters: Sequence[Tensor]) -> None:
        """Look for the modules that own these parameters, unless they are known already; none of them rests."""
        if not all(id(parameter) in self._owned for parameter in parameters):
            for root in self.all.roots(parameters):
                self._looks = 0
                self._listen(root)
                self._owned.update((id(parameter), id(root)) for parameter in root.parameters())
        for key in {self._owned.get(id(parameter), 0) for parameter in parameters} if self._resting else ():
            self._wake(key)

    def look_again(self, parameters: Sequence[Tensor]) -> None:
        """No call was heard before an update: the model was wrapped since, or the program calls parts of it."""
        if self._looks >= _MAX_LOOKS:
            return
        known = set(self._heard)
        for root in self.all.roots(parameters):
            self._listen(root)
        if known == set(self._heard):
            self._looks += 1
            for module in self.modules():
                for child in module.children():
                    if any(True for _ in child.parameters()):
                        self._listen(child)

    def modules(self) -> list[nn.Module]:
        """The modules that are listened to and still alive."""
        return [module for reference in self._heard.values() if (module := reference()) is not None]

    def roots(self) -> list[nn.Module]:
        """Those of them that are in no other and do not rest."""
        if self._roots is None:
            modules = [module for module in self.modules() if id(module) not in self._resting]
            below = {id(part) for module in modules for part in module.modules() if part is not module}
            self._roots = [weakref.ref(module) for module in modules if id(module) not in below]
        return [module for reference in self._roots if (module := reference()) is not None]

    def names(self) -> dict[int, str]:
        """Parameter names by identity; of several models each is called by its class."""
        roots = self.roots()
        named: dict[int, str] = {}
        kinds = Counter[str]()
        for root in roots:
            kind = type(inner(root)).__name__
            kinds[kind] += 1
            # Two models of one class must not share names: state is kept and restored by name.
            number = f"#{kinds[kind]}" if kinds[kind] > 1 else ""
            prefix = f"{kind}{number}." if len(roots) > 1 else ""
            for name, parameter in root.named_parameters():
                named.setdefault(id(parameter), prefix + name.replace("_orig_mod.", "").removeprefix("module."))
        return named

    def _listen(self, module: nn.Module) -> None:
        key = id(module)
        if key in self._heard:
            return
        self._heard[key] = weakref.ref(module, lambda _: self._gone(key))
        self._roots = None
        before = module.register_forward_pre_hook(_Hook(self._before, self._barrier), with_kwargs=True, prepend=True)
        after = module.register_forward_hook(_Hook(self._after, self._barrier), with_kwargs=True, always_call=True)
        self._undo[key] = (before.remove, after.remove)
        for part in callable_parts(module):
            self._listen(part)

    def _gone(self, key: int) -> None:
        self._heard.pop(key, None)
        self._undo.pop(key, None)
        self._roots = None
        # What is gone leaves its places in memory to others.
        self._called_once.discard(key)
        if key in self._resting:
            self._resting.pop(key).remove(key)
        self._owned = {parameter: module for parameter, module in self._owned.items() if module != key}

    def _rest(self, roots: Sequence[nn.Module]) -> None:
        """The models that were called are of a training that has ended. One that is trained without a call that is
        heard does not rest: nothing would wake it."""
        for root in roots:
            parts = [id(part) for part in root.modules() if id(part) in self._heard]
            if not self._called_once.isdisjoint(parts):
                self._resting.update((key, parts) for key in parts)
                self._called_once.difference_update(parts)
        self._roots = None

    def _rest_untrained(self) -> None:
        """No optimizer trains these any more: only the program keeps them alive. Not the one that is being called."""
        self.trainer_gone = False
        untrained = [root for root in self.roots() if not self._watch.optimizers.trainers_of(root)]
        self._rest([root for root in untrained if not any(id(part) in self._inside for part in root.modules())])

    def _wake(self, key: int) -> None:
        for part in self._resting.get(key, ()):
            del self._resting[part]
            self._roots = None

    def leave(self, roots: Sequence[nn.Module]) -> None:
        """Listen to these no more: something else does."""
        for key in {id(part) for root in roots for part in root.modules()} & set(self._undo):
            self._leave(key)

    def _leave(self, key: int) -> None:
        for remove in self._undo.pop(key, ()):
            remove()
        self._gone(key)

    # -- at a call

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Does not sync, but for an audit of a model's first calls."""
        if not module.training or self._watch.is_called_elsewhere(module):
            return
        if not torch.is_grad_enabled():
            self._without_gradients(began=True)
            return
        self._inside.append(id(module))
        if len(self._inside) > 1:
            return
        self._called_once.add(id(module))
        if id(module) in self._resting:
            self._wake(id(module))
            self._watch.ledger.wake()
        if self._watch.entered():
            self._round_left_out()
            self._entry_is_old = True  # the program left the last round out: this call begins a new window
        rng: RngState | None = None
        if self._entry is None or self._entry_is_old:
            rng = self._take().rng  # taken a moment ago: it is this call's too
        else:
            self.forward_state().took_again()
        if innermost_transform() is not None:
            self.lost_calls += 1  # what vmap or grad pass to a model is of no use once they are over
            return
        if self.calls:  # the first is kept whatever memory it takes
            if not any(self._kept.bytes.values()):
                self._kept.add(pieces_of((self.calls[0].args, self.calls[0].kwargs)))
            self._kept.add(pieces_of((args, kwargs)))
            if len(self.calls) >= MAX_CALLS or self._kept.too_many:
                self.lost_calls += 1
                return
        tensors = tensors_in((args, kwargs))
        call = note_call(module, args, kwargs, depth=3, rng=rng, tensors=tensors)
        self.calls.append(call)
        self._watch.called(call, tensors)

    def _without_gradients(self, *, began: bool) -> None:
        """A call without gradients draws numbers as well: for the window under way, or for the one that comes."""
        if self._inside:
            return
        forward = self.forward_state()
        if self._entry is None or self._entry_is_old:
            forward.aside(began=began)
        elif began:
            forward.took_again()
        else:
            forward.left()

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if module.training and not torch.is_grad_enabled() and not self._watch.is_called_elsewhere(None):
            self._without_gradients(began=False)
        if id(module) not in self._inside or self._watch.is_called_elsewhere(None):
            return
        # A forward that raised left the calls inside it behind.
        del self._inside[self._inside.index(id(module)) :]
        if self._inside:
            return
        if self._forward is not None:
            self._forward.notice()
            self._forward.left()
            if self._audits < _AUDITED_STEPS:
                self._audits += 1
                self._forward.audit(values=True)
        call = self.calls[-1] if self.calls and self.calls[-1].module is module else None
        if call is not None and not call.finished:
            keep_output_gradients(call, output)

    def _take(self) -> Entry:
        self.forget_calls()
        if self.trainer_gone:
            self._rest_untrained()
        forward = self.forward_state()
        forward.refresh()
        if self._entry is not None:
            forward.release(self._entry)
        self._entry, self._entry_is_old = forward.take(), False
        return self._entry

    def forward_state(self) -> ForwardState:
        """What the forward of all models in use may move. Made anew when there are others; in the middle of a window
        they are added."""
        roots = self.roots()
        key, before = tuple(map(id, roots)), self._forward_of
        if self._forward is not None and key == before:
            return self._forward
        self._forward_of = key
        if self._forward is None or self._entry is None or self._entry_is_old or not set(before) <= set(key):
            self._forward, self._entry = ForwardState(roots), None
        else:
            self._forward.include([root for root in roots if id(root) not in before], self._entry)
        self._audits = 0
        return self._forward

    def moving_buffers(self) -> dict[str, Tensor]:
        """What forward may move of the models in use, without what was not finite from the start."""
        if self._forward is None:
            return {}
        at_start = self._forward.non_finite_at_start()
        return {f"buffer {name}": each for name, each in self._forward.tensors().items() if name not in at_start}

    # -- at an update

    @property
    def entry(self) -> Entry | None:
        """The state before the first call since the last update, or None where no call was heard."""
        return self._entry

    @property
    def heard(self) -> bool:
        """Whether a model was called since the last update."""
        return not self._entry_is_old

    @property
    def called(self) -> bool:
        """Whether a call of a model was heard since the last update, and not only the begin of a closure: trainers give
        one to every update, also where the forward is long done."""
        return self.heard and bool(self.calls or self.lost_calls)

    def begin_window(self) -> None:
        """Forward is about to run where no call of a model may be heard: inside a closure."""
        if self._entry is None or self._entry_is_old:
            self._take()

    def zeroed(self) -> None:
        """Gradients were cleared: what comes next is a new window, unless its forward is already done."""
        if all(call.output_gradients or call.too_large for call in self.calls):
            self._round_left_out()
            self._entry_is_old = True
            self.forget_calls()

    def _round_left_out(self) -> None:
        """A window ends without an update. If the program left it out for a bad value, what its forward made non-finite
        is restored: else every later round would meet it."""
        watch, before = self._watch, self._left_out
        self._left_out = watch.events.skipped
        if self._left_out == before or self._entry is None or self._entry_is_old:
            return
        names = restore_what_turned_bad(self._entry.hot) if watch.policy.acts and watch.alone else []
        if names:
            watch.ledger.event("restored_after_skip", step=watch.step, names=names)
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            watch.ledger.tell("restored_after_skip", f"a batch that the program left out had made {shown} non-finite, "
                              "and left it so; it was restored to before that batch")  # fmt: skip

    def put_back(self) -> list[str]:
        """Undo what the forwards since the last update moved. Returns what is not known for certain."""
        if self._entry is None or self._forward is None:
            return ["running statistics and random numbers (no call was heard)"] if self._may_move() else []
        self._rng = self._forward.rng_without(self._entry.place)
        uncertain = self._forward.uncertain_draws
        if self._forward.drawn_before(self._entry) and self.all.draw_besides(self.modules()):
            uncertain = ["random numbers (which other models with dropout may have drawn for it)"]
        uncertain += self._forward.restore(self._entry)
        self._forward.forget_since(self._entry.place)
        return uncertain

    def _may_move(self) -> bool:
        return any(ModeModules(root) for root in self.roots())

    def go_on(self) -> None:
        """After a refused update was looked into: the random states to go on with."""
        rng, self._rng = self._rng, None
        if rng is not None:
            put_rng(rng)

    def stepped(self) -> None:
        """An update was applied or was refused; the next call begins a new window. Entry and calls stay until then
        for a sibling optimizer that steps after the same backward."""
        self._entry_is_old = True
        self._inside.clear()

    def forget_calls(self) -> None:
        self.calls.clear()
        self._kept.clear()
        self.lost_calls = 0

    def let_go(self) -> None:
        """Keep nothing of the last step alive: its training may have ended."""
        self._rest(self.roots())
        self._forget_window()

    def let_go_untrained(self) -> None:
        """The same, where the last step was of a training that has ended and others go on."""
        self._rest_untrained()
        self._forget_window()

    def _forget_window(self) -> None:
        self.forget_calls()
        self._entry, self._forward, self._forward_of, self._entry_is_old = None, None, (), True

    def close(self) -> None:
        for key in list(self._undo):
            self._leave(key)
        self._owned.clear()
        self.forget_calls()


class _Hook:
    """A hook that leaves nothing of us in a copied or saved model: there it is a function that does nothing."""

    __slots__ = ("_barrier", "_call")

    def __init__(self, call: Callable[..., None], barrier: FaultBarrier) -> None:
        self._call, self._barrier = call, barrier

    def __call__(self, *args: Any) -> None:
        # Under a compiler, torch.jit.trace or a capture it does nothing: no break in the graph, nothing added to it.
        if torch.compiler.is_compiling() or tracing_state() is not None:
            return
        try:  # not `with self._barrier`: this is every step's path
            if not capturing():
                self._call(*args)
        except SteadyError:
            raise
        except Exception as fault:
            self._barrier.note("models", fault)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")
