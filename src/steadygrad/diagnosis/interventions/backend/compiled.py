"""Compiled code inside a replay: run as it was compiled, eagerly, or compiled with casts kept."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType
from typing import Any

import torch

from ....detect.tensors.foreign_objects import getattr, hasattr, isinstance
from ....detect.tensors.torch_private import dynamo_counters, dynamo_is_loaded
from ...replay.replay_step import ReplayChange
from ...replay.replayable import Replayable


def compiled_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules that were compiled, by name, outermost first: `module.compile()` and `torch.compile(module)`."""
    found = {}
    for name, module in model.named_modules():
        if getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule":
            found[name] = module
    return found


def compiled_callables(model: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """What a step of this model calls as compiled code: where it is kept, under which name, and the callable itself.

    Modules that were compiled, attributes of modules, and functions that a module's methods call by a global name.
    """
    homes: dict[int, tuple[dict[str, Any], set[str]]] = {}
    for module in model.modules():
        homes[id(module.__dict__)] = (module.__dict__, set(module.__dict__))
        methods = [m for base in type(module).__mro__ for m in vars(base).values() if isinstance(m, FunctionType)]
        for method in methods:
            if not method.__module__.startswith("torch."):
                homes.setdefault(id(method.__globals__), (method.__globals__, set()))[1].update(
                    method.__code__.co_names
                )
    for home, names in homes.values():
        for name in sorted(names):
            found = home.get(name)
            compiled = isinstance(found, FunctionType) and hasattr(found, "_torchdynamo_orig_callable")
            if compiled and not hasattr(found, "_torchdynamo_disable"):
                yield home, name, found


def compiled_apart(plain: Any, **options: Any) -> Any:
    """Compiled without counting towards the limit of recompilations of the run, where torch can do that (2.13)."""
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    return torch.compile(plain, **options)


def runs_compiled(model: torch.nn.Module) -> bool:
    """Whether a step of this model runs any compiled code: of a module, or of a function that was compiled."""
    if not dynamo_is_loaded():
        return False
    return bool(compiled_modules(model)) or bool(dynamo_counters()["frames"]["ok"])


def as_compiled() -> AbstractContextManager[Any]:
    """Inside a diagnosis, which runs eagerly: compiled code runs as the training step ran it."""
    return torch.compiler.set_stance("default") if dynamo_is_loaded() else nullcontext()


class AsCompiled(ReplayChange):
    """The step as the run made it, compiled code included. No tracer can see into it."""

    alters_values = False

    @contextmanager
    def around(self) -> Iterator[None]:
        with as_compiled():
            yield


class Eager(ReplayChange):
    """Nothing runs as compiled code."""

    @contextmanager
    def around(self) -> Iterator[None]:
        with torch.compiler.set_stance("force_eager"):
            yield


class Recompiled(AsCompiled):
    """The compiled modules compiled once more, in another way; the compiled code of the run is kept and restored.

    Dynamo keeps compiled code by backend. What is compiled here has a backend of another identity, or the run would
    find it later and go on with it.
    """

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, Any], str, Any]] = []

    def recompiled(self, plain: Any, backend: Any, dynamic: bool | None) -> Any:
        return compiled_apart(plain, backend=lambda graph, inputs: backend(graph, inputs), dynamic=dynamic)

    def prepared(self, replayable: Replayable) -> None:
        if not self._before:
            self.recompile(replayable)

    def recompile(self, replayable: Replayable) -> None:
        for home, name, compiled in list(compiled_callables(replayable.model)):
            plain, backend, dynamic = _made_of(compiled)
            self._before.append((home, name, compiled))
            home[name] = self.recompiled(plain, backend, dynamic)

    def undo(self, replayable: Replayable) -> None:
        for home, name, own in reversed(self._before):
            if own is None:
                del home[name]
            else:
                home[name] = own
        self._before.clear()


def _made_of(compiled: Any) -> tuple[Any, Any, bool | None]:
    """What was compiled, by which backend, and for which shapes."""
    plain, cells = getattr(compiled, "_torchdynamo_orig_callable", None), compiled.__closure__ or ()
    held = dict(zip(compiled.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))
    backend, context = held.get("callback"), held.get("self")
    while (inner := getattr(backend, "_torchdynamo_orig_backend", None)) is not None:
        backend = inner
    backend = getattr(backend, "_torchdynamo_orig_callable", backend)
    if plain is None or not callable(backend):
        raise ValueError("the compiled function cannot be compiled again")
    return plain, backend, getattr(context, "_dynamic", None)


class EagerModule(Recompiled):
    """One module runs eagerly; what is compiled around it stays so, in two parts."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def prepared(self, replayable: Replayable) -> None:
        if not self._before:
            module = replayable.model.get_submodule(self.name)
            self._before.append((module.__dict__, "forward", module.__dict__.get("forward")))
            module.__dict__["forward"] = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]
            self.recompile(replayable)


class KeepCasts(Recompiled):
    """Compiled by inductor with every cast between precisions kept, as eager code makes them."""

    def recompiled(self, plain: Any, backend: Any, dynamic: bool | None) -> Any:
        if getattr(backend, "compiler_name", "") != "inductor":
            raise ValueError("the backend is not inductor")
        own = dict(getattr(backend, "config", {}))  # what the run itself asked of inductor stays as it is
        return compiled_apart(plain, dynamic=dynamic, options={**own, "emulate_precision_casts": True})
