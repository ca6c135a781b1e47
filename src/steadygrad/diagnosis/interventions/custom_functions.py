"""Custom autograd functions run as the plain code of their forward, so that autograd differentiates it itself; and
kernels whose formula is not seen, given other numbers than they were."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.autograd import Function

from ...detect.tensors.foreign_objects import isinstance
from ...detect.tensors.torch_private import TorchDispatchMode
from ..isolation.index_bounds import is_of_extension
from ..replay.replay_step import ReplayChange
from ..trace.tracer import op_name


def function_at(place: str) -> type[Function] | None:
    """The custom autograd function in whose source this place ("file:line") lies; None where there is none."""
    file, _, line = place.rpartition(":")
    pending = list(Function.__subclasses__())
    while pending:
        function = pending.pop()
        pending += function.__subclasses__()
        if _is_torchs(function):
            continue
        try:
            lines, first = inspect.getsourcelines(function)
            source = inspect.getsourcefile(function)
        except (OSError, TypeError):
            continue
        if source and Path(source).resolve() == Path(file).resolve() and first <= int(line) < first + len(lines):
            return function
    return None


def _is_torchs(function: type[Function]) -> bool:
    return function.__module__.partition(".")[0] == "torch"


class _Context:
    """What a forward is given to keep things for a backward that no one will call."""

    needs_input_grad: tuple[bool, ...] = ()
    saved_tensors: tuple[torch.Tensor, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None: ...
    def mark_dirty(self, *tensors: Any) -> None: ...
    def mark_non_differentiable(self, *tensors: Any) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...


class PlainBackward(ReplayChange):
    """One custom function loses its backward, and autograd works out its own from the ops of its forward."""

    def __init__(self, function: type[Function]) -> None:
        self.function = function

    @contextmanager
    def around(self) -> Iterator[None]:
        def plain(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            if cls.setup_context is not Function.setup_context:
                return cls.forward(*args, **kwargs)
            context = _Context()
            context.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
            return cls.forward(context, *args, **kwargs)

        with _applied_by(self.function, plain), _differentiated_again(self.function):
            yield


@contextmanager
def _differentiated_again(function: type[Function]) -> Iterator[None]:
    """Inside, the backward of a function whose `apply` was kept under another name is that of its forward's ops."""
    forward, setup = function.forward, function.setup_context
    with_setup = setup is not Function.setup_context

    def noting(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx.given = args, kwargs
        return forward(ctx, *args, **kwargs)

    def setting_up(ctx: Any, inputs: Any, output: Any) -> Any:
        ctx.given = inputs, {}
        return setup(ctx, inputs, output)

    def backward(ctx: Any, *gradients: Any) -> Any:
        args, kwargs = ctx.given
        needed = ctx.needs_input_grad
        mine = [
            a.detach().requires_grad_(n) if isinstance(a, torch.Tensor) else a
            for a, n in zip(args, needed, strict=False)
        ]
        with torch.enable_grad():
            made = forward(*mine, **kwargs) if with_setup else forward(_Context(), *mine, **kwargs)
        outputs = made if isinstance(made, tuple) else (made,)
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and o.requires_grad]
        wanted = [place for place, n in enumerate(needed) if n]
        found = torch.autograd.grad(
            [o for o, _ in pairs], [mine[place] for place in wanted], [g for _, g in pairs], allow_unused=True
        )
        by_place = dict(zip(wanted, found, strict=True))
        return tuple(by_place.get(place) for place in range(len(args)))

    changes: dict[str, Any] = {"setup_context": setting_up} if with_setup else {"forward": noting}
    with _replaced(function, {**changes, "backward": backward}):
        yield


@contextmanager
def _replaced(function: type[Function], methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Inside, these static methods of a custom function are others."""
    before = {name: function.__dict__.get(name) for name in methods}
    for name, method in methods.items():
        setattr(function, name, staticmethod(method))
    try:
        yield
    finally:
        for name, own in before.items():
            if own is None:
                delattr(function, name)
            else:
                setattr(function, name, own)


@contextmanager
def _applied_by(function: type[Function], instead: Callable[..., Any]) -> Iterator[None]:
    """Inside, `function.apply` is another function, which is given the class first."""
    own = function.__dict__.get("apply")
    function.apply = classmethod(instead)  # type: ignore[assignment]
    try:
        yield
    finally:
        if own is None:
            del function.apply
        else:
            function.apply = own  # type: ignore[method-assign]


def without_zeros(tensor: torch.Tensor) -> torch.Tensor:
    """Exact zeros become small numbers."""
    return torch.where(tensor == 0, torch.full_like(tensor, 1e-3), tensor)


def without_equals(tensor: torch.Tensor) -> torch.Tensor:
    """No two numbers are alike any more: each is changed by a percent or less."""
    steps = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float32).view(tensor.shape)
    return tensor * (1.0 + 0.01 * torch.sin(steps + 1.0)).to(tensor.dtype)


def made_small(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2.0**-10


class OtherArguments(ReplayChange):
    """The floating tensors that one custom function, or one operation of an extension, is given are changed."""

    def __init__(self, kernel: type[Function] | str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.kernel, self.change = kernel, change

    @contextmanager
    def around(self) -> Iterator[None]:
        if isinstance(self.kernel, str):
            with _AtOperation(self.kernel, self._changed):
                yield
            return
        # Where its `apply` was kept under another name, it is called past us: then its methods are given the change.
        apply: Callable[..., Any] = self.kernel.apply
        forward, setup = self.kernel.forward, self.kernel.setup_context
        changed_before: list[bool] = []

        def given(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
            changed_before.append(True)
            try:
                return apply(*map(self._changed, args), **kwargs)
            finally:
                changed_before.pop()

        def forwarding(*args: Any, **kwargs: Any) -> Any:
            return forward(*(args if changed_before else map(self._changed, args)), **kwargs)

        def setting_up(ctx: Any, inputs: Any, output: Any) -> Any:
            return setup(ctx, inputs if changed_before else tuple(map(self._changed, inputs)), output)

        changes: dict[str, Any] = {"forward": forwarding}
        if setup is not Function.setup_context:
            changes["setup_context"] = setting_up
        with _applied_by(self.kernel, given), _replaced(self.kernel, changes):
            yield

    def _changed(self, item: Any) -> Any:
        return self.change(item) if isinstance(item, torch.Tensor) and item.is_floating_point() else item


class _AtOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, name: str, change: Callable[[Any], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name, self._change = name, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_of_extension(func) and op_name(func) == self._name:
            args = tuple(map(self._change, args))
        return func(*args, **(kwargs or {}))
