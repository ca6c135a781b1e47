"""Hooks on every module for the length of one step: what they give out, and what comes back to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .dtype_ranges import RangeTally


class ModuleTallies:
    """Tallies of outputs and of their gradients, by module, and the first that was not finite."""

    def __init__(self, root: str = "") -> None:
        self.root = root
        self.outputs: dict[str, RangeTally] = {}
        self.gradients: dict[str, RangeTally] = {}
        self.kinds: dict[str, str] = {}
        self.born: list[str] = []
        """Modules that gave out a value that is not finite though none came in, in the order of the forward."""
        self.born_in_backward: list[str] = []
        """Modules whose gradient was not finite, in the order of the backward."""
        self._seen: dict[int, Tensor] = {}

    def after(self, name: str, module: nn.Module, given: Any, answer: Any) -> None:
        """Called when a module has run."""
        for tensor in (t for t in tensors_in(answer) if t.is_floating_point()):
            if id(tensor) in self._seen:
                continue  # a container hands on what its last child gave out
            self._seen[id(tensor)] = tensor
            self.outputs.setdefault(name, RangeTally()).add(tensor)
            self.kinds[name] = type(module).__name__
            if tensor.requires_grad:
                tensor.register_hook(self._on_gradient(name))  # type: ignore[no-untyped-call]
        if _finite(given) and not _finite(answer) and not self._born_inside(name):
            self.born.append(name)

    def _born_inside(self, name: str) -> bool:
        """Whether a module within this one is known already; between its modules, the one around them is named."""
        return any(other.startswith(name + ".") or name == self.root for other in self.born)

    def _on_gradient(self, name: str) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            tally = self.gradients.setdefault(name, RangeTally())
            before = tally.num_bad
            tally.add(gradient)
            if tally.num_bad > before and name not in self.born_in_backward:
                self.born_in_backward.append(name)

        return note


@contextmanager
def watching(model: nn.Module) -> Iterator[ModuleTallies]:
    """Every module of the model is watched within the block; the hooks are gone after it."""
    watch = ModuleTallies(type(model).__name__)
    handles = []
    for name, module in model.named_modules():
        label = name or type(model).__name__

        def hook(m: nn.Module, args: Any, kwargs: Any, out: Any, label: str = label) -> None:
            watch.after(label, m, (args, kwargs), out)

        handles.append(module.register_forward_hook(hook, with_kwargs=True))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def kept_wide(model: nn.Module, names: Sequence[str], device: str) -> Iterator[None]:
    """Within the block these modules compute in float32 whatever the autocast around them says."""
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if (name or type(model).__name__) in names:
                stack.enter_context(_wide(module, device))
        yield


@contextmanager
def _wide(module: nn.Module, device: str) -> Iterator[None]:
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return inner(*mapped(args, _float), **mapped(kwargs, _float))

    had = "forward" in vars(module)
    module.forward = forward
    try:
        yield
    finally:
        if had:
            module.forward = inner
        else:
            del module.forward


def _float(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _finite(value: Any) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors_in(value) if t.is_floating_point())


def tensors_in(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists, mappings and the outputs of transformers."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item, depth - 1)


def mapped(value: Any, change: Callable[[Tensor], Tensor], depth: int = 4) -> Any:
    """The same nest with every tensor changed; what is no plain container stays as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if depth and type(value) in (list, tuple):
        return type(value)(mapped(item, change, depth - 1) for item in value)
    if depth and type(value) is dict:
        return {key: mapped(item, change, depth - 1) for key, item in value.items()}
    return value


CROSS_ENTROPY = ("cross_entropy", "nll_loss")


class CrossEntropies(TorchFunctionMode):
    """While it is in place: the largest mean cross-entropy that was computed, and how many classes it had. Where
    nothing has been learnt yet it is the logarithm of their number."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.classes = math.nan, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if getattr(func, "__name__", "") in CROSS_ENTROPY and kwargs.get("reduction", "mean") == "mean":
            scores = args[0] if args else kwargs.get("input")
            if isinstance(scores, torch.Tensor) and isinstance(out, torch.Tensor) and not out.dim() and scores.dim():
                self._note(float(out.detach()), scores.shape[1 if scores.dim() > 1 else 0])
        return out

    def _note(self, value: float, classes: int) -> None:
        if math.isfinite(value) and classes > 1 and not value <= self.value:
            self.value, self.classes = value, classes
