"""The models of a program: found when an optimizer is made, listened to at their outermost call.

Before the first call since an update it takes what the forward may move (running statistics, counters, random
numbers); a refused update restores that. The outermost call is the root's where the program calls the root. A
program that calls parts of it (`self.net(x)` inside a larger module) is met one floor further down after a step.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ....detect.tensors.torch_private import tracing_state
from ....engine.fault_barrier import FaultBarrier
from ....engine.state.forward_state import Entry, ForwardState
from ....engine.state.kept_bytes import KeptBytes, pieces_of
from ....engine.state.rng import RngState, put_rng
from ....records.errors import SteadyError
from .call_log import MAX_CALLS, Call, inner, keep_output_gradients, note_call
from .find_models import ProgramModules

_MAX_LOOKS = 12
_AUDITED_STEPS = 3


class ModelHooks:
    """Everything that is known of the program's models. `on_call(call)` hears of each call that is kept."""

    def __init__(
        self,
        barrier: FaultBarrier,
        away: Callable[[nn.Module | None], bool],
        *,
        on_enter: Callable[[], bool],
        on_call: Callable[[Call], None],
    ) -> None:
        self._barrier = barrier
        self.away = away
        """Whether we run the program's model ourselves just now, are a forked child, or it is another training that
        calls this model."""
        self._on_enter, self._on_call = on_enter, on_call
        self.all = ProgramModules()
        self._heard: dict[int, weakref.ref[nn.Module]] = {}
        self._undo: dict[int, tuple[Callable[[], None], ...]] = {}
        self._roots: list[weakref.ref[nn.Module]] | None = None
        self._owned: set[int] = set()
        self._looks = 0
        self._forward: ForwardState | None = None
        self._forward_of: tuple[int, ...] = ()
        self._entry: Entry | None = None
        self._entry_is_old = True
        self._inside: list[int] = []
        self._audits = 0
        self._rng: RngState | None = None
        self._kept = KeptBytes()
        self.calls: list[Call] = []
        self.lost_calls = 0

    # -- finding them

    def adopt(self, parameters: Sequence[Tensor]) -> None:
        """Look for the modules that own these parameters, unless they are known already."""
        if all(id(parameter) in self._owned for parameter in parameters):
            return
        for root in self.all.roots(parameters):
            self._looks = 0
            self._listen(root)
            self._owned.update(id(parameter) for parameter in root.parameters())

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
        """Those of them that are in no other."""
        if self._roots is None:
            modules = self.modules()
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

    def _gone(self, key: int) -> None:
        self._heard.pop(key, None)
        self._undo.pop(key, None)
        self._roots = None
        # What is gone leaves its places in memory to others.
        self._owned = {id(parameter) for module in self.modules() for parameter in module.parameters()}

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
        if not (module.training and torch.is_grad_enabled()) or self.away(module):
            return
        self._inside.append(id(module))
        if len(self._inside) > 1:
            return
        if self._on_enter():
            self._entry_is_old = True  # the program left the last round out: this call begins a new window
        rng: RngState | None = None
        if self._entry is None or self._entry_is_old:
            rng = self._take().rng  # taken a moment ago: it is this call's too
        elif self._forward is not None:
            self._forward.took_again()
        self._kept.add(pieces_of((args, kwargs)))
        if len(self.calls) >= MAX_CALLS or (self.calls and self._kept.too_many):
            self.lost_calls += 1
            return
        call = note_call(module, args, kwargs, depth=3, rng=rng)
        self.calls.append(call)
        self._on_call(call)

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if id(module) not in self._inside or self.away(None):
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
        forward = self.forward_state()
        if self._entry is not None:
            forward.release(self._entry)
        self._entry, self._entry_is_old = forward.take(), False
        return self._entry

    def forward_state(self) -> ForwardState:
        """What the forward of all known models may move, made anew when a model was found."""
        roots = self.roots()
        key = tuple(id(root) for root in roots)
        if self._forward is None or key != self._forward_of:
            self._forward, self._forward_of, self._entry = ForwardState(roots), key, None
            self._audits = 0
        return self._forward

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
        if not self.calls or all(call.output_gradients or call.too_large for call in self.calls):
            self._entry_is_old = True
            self.forget_calls()

    def put_back(self) -> list[str]:
        """Undo what the forwards since the last update moved. Returns what is not known for certain."""
        if self._entry is None or self._forward is None:
            return []
        self._rng = self._forward.rng_without(self._entry.place)
        uncertain = self._forward.restore(self._entry)
        self._forward.forget_since(self._entry.place)
        return uncertain

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
        # Under a compiler or torch.jit.trace it does nothing: no break in the graph and nothing added to it.
        if torch.compiler.is_compiling() or tracing_state() is not None:
            return
        try:  # not `with self._barrier`: this is every step's path
            self._call(*args)
        except SteadyError:
            raise
        except Exception as fault:
            self._barrier.note("models", fault)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")
