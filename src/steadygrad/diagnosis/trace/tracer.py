"""The tracer: every aten op of a replayed step, who read what, who wrote what, and where it stands in the user's code.

All private torch interfaces of the tracer live in this file: the dispatch mode that sees ops below autograd, the
function mode that sees calls above it, and the running autograd node. A record holds names, shapes and one number for
each tensor, its largest magnitude, left on the device as a scalar and read by the host once, in `Trace.finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from ...detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ...detect.tensors.readable_tensors import describable, has_values, once, stored_values, why_not_read
from ...detect.tensors.torch_private import (
    TorchDispatchMode,
    autograd_sequence,
    current_autograd_node,
    dynamo_is_loaded,
    without_torch_function,
)
from .backward_mode import StaysInBackward
from .trace_log import Exit, ModuleVisit, OpRecord, Touch, Trace
from .user_frames import Stack, UserFrame, current_stack

Watcher = Callable[["OpRecord", Any, Sequence[Any], Mapping[str, Any], Any], None]
"""Called before the op with out=None and after it: (record, func, args, kwargs, out)."""


_AT_ONCE = 1 << 24
"""So many 8-bit floats are widened at a time."""


def _absmax(tensor: torch.Tensor) -> torch.Tensor | None:
    """Largest magnitude as a scalar on the device; NaN wins, then inf. One reduction, no host sync."""
    if not has_values(tensor):
        return None
    tensor, _ = once(tensor.detach())
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype.itemsize == 1:  # hardly any function takes it as it is
        parts = [part.to(torch.float32).abs().amax() for part in tensor.reshape(-1).split(_AT_ONCE)]  # type: ignore[no-untyped-call]
        return torch.stack(parts).amax()
    if tensor.device.type == "cpu":  # several times as fast there as the norm
        low, high = torch.aminmax(tensor)
        return torch.maximum(-low, high)
    size: torch.Tensor = torch.linalg.vector_norm(tensor, float("inf"))
    return size


def own_work() -> AbstractContextManager[Any]:
    """Around the tracer's own questions to tensors: they are no calls of the program, and no mode is to see them."""
    around: AbstractContextManager[Any] = without_torch_function()
    return around


def op_name(func: Any) -> str:
    """aten::_softmax.default -> softmax; aten::lerp_ -> lerp; aten::_foreach_add_ -> add."""
    name = str(func._schema.name).split("::")[-1]
    return name.lstrip("_").removeprefix("foreach_").rstrip("_") or name


class Tracer:
    """Holds the modes and hooks open around a replay. `stage` is set by whoever drives the replay."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        owners: frozenset[str] = frozenset(),
        watch: Mapping[int, Watcher] | None = None,
        deaf: bool = False,
    ) -> None:
        """`watch` calls a watcher at chosen ordinals; `deaf` counts ops and digests nothing else."""
        self.trace = Trace()
        self.stage = "forward"
        self.owners = owners
        self.watch = dict(watch or {})
        self.deaf = deaf
        self.paused = False
        self._count = 0
        self._names = {id(module): name for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
        self._modules: list[str | None] = []
        self._cache: dict[tuple[Any, ...], int | None] = {}
        self._nodes: dict[int, int] = {}
        self._call: tuple[str, Stack | None] = ("", None)

    @contextmanager
    def tracing(self) -> Iterator[Tracer]:
        """Trace everything inside. Eager: a compiled model is replayed uncompiled."""
        with ExitStack() as stack:
            stack.enter_context(self._around_modules())
            if dynamo_is_loaded():  # where it was never loaded nothing is compiled, and loading it is slow
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(_Dispatch(self))
            stack.enter_context(_Calls(self))
            yield self

    @contextmanager
    def _around_modules(self) -> Iterator[None]:
        """Note every module call, its own hooks included: global hooks would let go before those run."""
        call = torch.nn.Module.__call__

        def noted(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._enter(module)
            try:
                return call(module, *args, **kwargs)
            finally:
                self._modules.pop()

        torch.nn.Module.__call__ = noted  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.nn.Module.__call__ = call  # type: ignore[method-assign]

    def _enter(self, module: torch.nn.Module) -> None:
        name = self._names.get(id(module))
        if name is not None and not self.deaf and not self.paused:
            with self._contained():
                where = current_stack(owners=self.owners)
                trainable = any(parameter.requires_grad for parameter in module.parameters())
                self.trace.visits.append(
                    ModuleVisit(name, torch.is_grad_enabled(), where, trainable, self.stage, where.recompute)
                )
        self._modules.append(name if name is not None else self.module)

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """A failure of the tracer's own work is noted in the trace and never reaches the code that is traced.

        Out of memory is the exception: there is nothing to go on with, and whoever replays must hear of it.
        """
        try:
            with own_work():
                yield
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            self.trace.pass_over(f"tracer failed: {type(error).__name__}: {error}"[:120])

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Around what is no part of the step."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def called(self, name: str) -> tuple[str, Stack | None]:
        """Note a call above autograd; returns what was noted before, to be restored afterwards."""
        before = self._call
        self._call = (name, current_stack(owners=self.owners))
        return before

    def left(self, tensor: Any, call: str) -> None:
        """Note that the values of a tensor were taken out of the graph."""
        if not self.deaf and self.stage == "forward" and describable(tensor) and tensor.requires_grad:
            where = current_stack(owners=self.owners)
            key = self.trace.key_of(tensor)
            self.trace.exits.append(Exit(key, len(self.trace.records), call, self.module, where))

    def returned(self, before: tuple[str, Stack | None]) -> None:
        self._call = before

    def dispatched(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Digest the inputs, run the op, digest the outputs. The inputs come first: the op may write over them."""
        if self.deaf:
            return self._watched(func, args, kwargs)
        record: OpRecord | None = None
        with self._contained():
            record = self._record(func, args, kwargs)
            self._read_inputs(record, func, args, kwargs)
        out = func(*args, **kwargs)
        if record is not None:
            with self._contained():
                self._read_outputs(record, func, args, kwargs, out)
        return out

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OpRecord:
        """The op that is about to run: its name, its place and its scalars. Enters it into the trace."""
        trace, flat = self.trace, _flat(args, kwargs)
        ordinal = len(trace.records)
        node: Any = current_autograd_node()
        # Inside one call every op stands on the same lines; in backward a walk ends at the engine at once.
        stack = self._call[1] if node is None and self._call[1] else current_stack(owners=self.owners)
        record = OpRecord(
            ordinal=ordinal,
            op=op_name(func),
            stage=self.stage,
            module=self.module,
            stack=stack,
            call=self._call[0],
            site=_site(self._call[1] or stack),
            scalars=_scalars(flat),
            backward=node is not None and not stack.recompute,
            grad_enabled=torch.is_grad_enabled(),
        )
        if node is None or stack.recompute:
            self._nodes.setdefault(autograd_sequence() - 1, ordinal)
        else:
            record.forward_ordinal = self._nodes.get(node._sequence_nr())
        trace.records.append(record)
        return record

    def _read_inputs(self, record: OpRecord, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        tensors: list[torch.Tensor] = []
        reasons: list[str] = []
        for item in _flat(args, kwargs):
            if isinstance(item, torch.Tensor):
                stored = stored_values(item)
                why = why_not_read(stored)
                if why is None:
                    tensors.append(stored)
                else:
                    reasons.append(why)
                    self.trace.pass_over(why)
        record.unread = tuple(reasons)
        # A view reads nothing: whoever reads through it is looked at then.
        record.reads = tuple(self._touch(tensor, look=not getattr(func, "is_view", False)) for tensor in tensors)
        watcher = self.watch.get(record.ordinal)
        if watcher is not None:
            watcher(record, func, args, kwargs, None)

    def _read_outputs(
        self, record: OpRecord, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        trace, ordinal = self.trace, record.ordinal
        written = _written(func, args, kwargs)
        outputs = [item for item in map(stored_values, _flat((out,), {})) if describable(item)]
        inputs = {touch.storage for touch in record.reads}
        record.view = not written and bool(outputs) and all(trace.key_of(item) in inputs for item in outputs)
        if not record.view:
            mutated = [tensor for tensor in map(stored_values, written) if describable(tensor)]
            for tensor in mutated:
                key = trace.key_of(tensor)
                trace.writers.setdefault(key, []).append((ordinal, None))
            fresh = mutated + [item for item in outputs if not any(item is tensor for tensor in mutated)]
            record.writes = tuple(self._touch(tensor) for tensor in fresh)
            for touch in record.writes:
                log = trace.writers.setdefault(touch.storage, [])
                if log and log[-1][0] == ordinal:
                    log[-1] = (ordinal, touch.reading)
                else:
                    log.append((ordinal, touch.reading))
        watcher = self.watch.get(ordinal)
        if watcher is not None:
            watcher(record, func, args, kwargs, out)

    def _watched(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Only the watched ops are looked at; the others run at nearly their own speed."""
        watcher, ordinal = self.watch.get(self._count), self._count
        self._count += 1
        if watcher is None:
            return func(*args, **kwargs)
        record = OpRecord(
            ordinal,
            op_name(func),
            self.stage,
            self.module,
            current_stack(owners=self.owners),
            scalars=_scalars(_flat(args, kwargs)),
        )
        with self._contained():
            watcher(record, func, args, kwargs, None)
        out = func(*args, **kwargs)
        with self._contained():
            watcher(record, func, args, kwargs, out)
        return out

    @property
    def module(self) -> str | None:
        """The innermost module executing; None outside every module."""
        return self._modules[-1] if self._modules else None

    def sink(self, tensor: torch.Tensor) -> Touch | None:
        """A value that matters (a loss, a gradient, a weight) as it is now; where a slice starts.

        Of a sparse gradient it is what that stores: backward made it, as it made a dense one.
        """
        stored = stored_values(tensor)
        return self._touch(stored) if describable(stored) else None

    def _touch(self, tensor: torch.Tensor, *, look: bool = True) -> Touch:
        key = self.trace.key_of(tensor)
        writes = len(self.trace.writers.get(key, ()))
        shape = tuple(tensor.shape)
        cached = (key, tensor.storage_offset(), shape, tensor.stride(), tensor.dtype, writes)
        reading: int | None
        if cached in self._cache:
            reading = self._cache[cached]
        elif not look:
            reading = None
        else:
            number = _absmax(tensor)
            reading = None
            if number is not None:
                reading = len(self.trace.readings)
                self.trace.readings.append(number)
            self._cache[cached] = reading
        return Touch(
            key, int(tensor.storage_offset()), shape, str(tensor.dtype).removeprefix("torch."), reading, writes
        )


EXITS = frozenset({"numpy", "tolist", "item", "__array__", "__float__"})
"""Calls that hand a tensor's values to Python: no gradient comes back from there."""
COPIES = frozenset({"tensor", "new_tensor"})
"""Calls that make a new tensor of the values they are given, with no way back to where those came from."""


def given_to(args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among what a copy is made of: itself, or the items of a list."""
    data = args[-1] if args else None
    items = list(data) if isinstance(data, list | tuple) else [data]
    return [item for item in items if isinstance(item, torch.Tensor)]


def reads_data(func: Any) -> bool:
    """Whether this call is the `.data` of a tensor."""
    return getattr(func, "__name__", "") == "__get__" and getattr(func, "__self__", None) is torch.Tensor.data


def _site(stack: Stack) -> UserFrame | None:
    return stack.frames[0] if stack.frames else None


def _scalars(flat: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(item) for item in flat if isinstance(item, int | float) and not isinstance(item, bool))


def _flat(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Arguments with their lists opened; ops take no deeper nesting."""
    found: list[Any] = []
    for item in (*args, *kwargs.values()):
        if isinstance(item, list | tuple):
            found += _flat(item, {})
        else:
            found.append(item)
    return found


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments an op writes to, by its schema."""
    found: list[Any] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += value if isinstance(value, list | tuple) else [value]
    return found


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees ops below autograd, in forward and backward."""

    supports_higher_order_operators = True

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.tracer.paused or not hasattr(func, "_schema"):
            return func(*args, **(kwargs or {}))
        return self.tracer.dispatched(func, args, kwargs or {})


class _Calls(StaysInBackward):
    """Sees calls above autograd, where a change would still be differentiated; in a backward of the user's own, too."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if self.tracer.paused:
            return func(*args, **kwargs)
        if args and (name in EXITS or reads_data(func)):
            self.tracer.left(args[0], name if name in EXITS else "data")
        elif name in COPIES:
            for item in given_to(args):
                self.tracer.left(item, name)
        if name in ("__get__", "__set__"):
            return func(*args, **kwargs)
        before = self.tracer.called(name)
        try:
            return func(*args, **kwargs)
        finally:
            self.tracer.returned(before)
