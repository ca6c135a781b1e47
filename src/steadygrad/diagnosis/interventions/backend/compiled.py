"""Compiled code inside a replay: run as it was compiled, eagerly, or compiled with casts kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ...replay.replay_step import ReplayChange
from ...replay.replayable import Replayable


def compiled_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules that were compiled, by name, outermost first: `module.compile()` and `torch.compile(module)`."""
    found = {}
    for name, module in model.named_modules():
        if getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule":
            found[name] = module
    return found


def runs_compiled(model: torch.nn.Module) -> bool:
    """Whether a step of this model runs any compiled code: of a module, or of a function that was compiled."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._dynamo.utils import counters

    return bool(compiled_modules(model)) or bool(counters["frames"]["ok"])


def as_compiled() -> AbstractContextManager[Any]:
    """Inside a diagnosis, which runs eagerly: compiled code runs as the training step ran it."""
    return torch.compiler.set_stance("default") if "torch._dynamo" in sys.modules else nullcontext()


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


class EagerModule(AsCompiled):
    """One module runs eagerly; what is compiled around it stays so, in two parts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._before: tuple[torch.nn.Module, Any] | None = None

    def prepared(self, replayable: Replayable) -> None:
        if self._before is None:
            module = replayable.model.get_submodule(self.name)
            self._before = (module, module.__dict__.get("forward"))
            module.__dict__["forward"] = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]

    def undo(self, replayable: Replayable) -> None:
        if self._before is not None:
            module, own = self._before
            del module.__dict__["forward"]
            if own is not None:
                module.__dict__["forward"] = own
            self._before = None


class KeepCasts(AsCompiled):
    """Compiled anew by inductor with every cast between precisions kept, as eager code makes them."""

    def __init__(self) -> None:
        self._before: list[tuple[torch.nn.Module, str, Any]] = []

    def prepared(self, replayable: Replayable) -> None:
        if self._before:
            return
        for module in compiled_modules(replayable.model).values():
            name = "_compiled_call_impl" if module.__dict__.get("_compiled_call_impl") is not None else "forward"
            compiled = module.__dict__[name]
            plain = getattr(compiled, "_torchdynamo_orig_callable", None)
            if plain is None:
                raise ValueError("the compiled function cannot be compiled again")
            self._before.append((module, name, compiled))
            module.__dict__[name] = torch.compile(plain, options={"emulate_precision_casts": True})

    def undo(self, replayable: Replayable) -> None:
        for module, name, compiled in reversed(self._before):
            module.__dict__[name] = compiled
        self._before.clear()
