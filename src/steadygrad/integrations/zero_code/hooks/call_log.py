"""The calls of a model since the last update, kept so that a refused step's can be made again.

Arguments are kept by reference, with the version of every tensor in them: one that was written to since cannot be run
again, and that is said. Of an output only the gradient that came back to it is kept, if it is small.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ....detect.loop.program_frames import user_line
from ....detect.tensors.foreign_objects import TENSORS, getattr, hasattr, is_tensor, isinstance
from ....detect.tensors.kept_content import ContentMarks, marks_of
from ....detect.tensors.nested_tensors import tensors_in
from ....engine.state.rng import RngState, put_rng, take_rng
from ...loops.repeatable_model_calls import only_through

MAX_CALLS = 64
MAX_KEPT_GRADIENT = 1 << 22
"""Past so many elements the gradient of an output is not kept: it would raise the peak of memory."""
_MAX_LIST = 256
_MARK = "steadygrad"
_marks = itertools.count()


@dataclass(slots=True)
class Call:
    """One outermost call of a model in training, with what it takes to make it again."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    marks: ContentMarks | None
    rng: RngState
    autocast: dict[str, torch.dtype]
    caller: tuple[str, int]
    output_gradients: dict[int, Tensor] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    """The outputs that are a single number, by the mark on their autograd node: one of them may be the loss. The nodes
    are not kept, for a graph is as large as all activations."""
    loss_place: int | None = None
    """Which output backward was called on, directly or through arithmetic with constants."""
    too_large: bool = False
    finished: bool = False

    @property
    def batch(self) -> dict[str, Any]:
        """The arguments by name or place, as a batch is shown."""
        return {**{str(i): value for i, value in enumerate(self.args)}, **self.kwargs}

    @property
    def overwritten(self) -> bool:
        """Whether someone wrote into the arguments since."""
        return self.marks != marks_of((self.args, self.kwargs))

    def again(self, batch: Mapping[str, Any] | None = None) -> Any:
        """Make the call again, with its own random numbers and precision; `batch` stands in for its arguments."""
        shown = self.batch if batch is None else batch
        args = tuple(detached(shown[str(i)]) for i in range(len(self.args)))
        kwargs = {key: detached(shown[key]) for key in self.kwargs}
        put_rng(self.rng)
        with ExitStack() as stack, torch.enable_grad():
            for device, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(device, dtype=dtype))
            return inner(self.module)(*args, **kwargs)


def note_call(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, depth: int, rng: RngState | None = None,
    tensors: Sequence[Tensor] | None = None,
) -> Call:  # fmt: skip
    """Keep one call as it begins. Host work only; copies nothing. `rng` are the random states, if just taken, and
    `tensors` those of the arguments, if just listed."""
    marks = marks_of((args, kwargs)) if tensors is None else ContentMarks(tensors)
    return Call(module, args, dict(kwargs), marks, rng or take_rng(), autocast_now(), user_line(depth + 1))


def keep_output_gradients(call: Call, output: Any) -> None:
    """Let the gradient that comes back to each output be remembered. Does not sync or copy."""
    for place, tensor in enumerate(outputs_in(output)):
        if not tensor.requires_grad:
            continue
        node: Any = tensor.grad_fn
        if tensor.numel() == 1 and node is not None:
            call.numbers.setdefault(node.metadata.setdefault(_MARK, next(_marks)), place)
        if tensor.numel() > MAX_KEPT_GRADIENT:
            call.too_large = True
            continue
        tensor.register_hook(_Keep(call.output_gradients, place))  # type: ignore[no-untyped-call]
    call.finished = True


def note_loss(calls: Sequence[Call], loss: Tensor) -> None:
    """Backward begins: is what it begins with an output of a model's call? Host work only, a few nodes."""
    for call in reversed(calls):
        for mark, place in call.numbers.items():
            if call.loss_place is None and only_through(loss.grad_fn, partial(_has, mark)):
                call.loss_place = place
                return


def _has(mark: int, node: Any) -> bool:
    return bool(node.metadata.get(_MARK) == mark)


class _Keep:
    """A tensor hook that remembers what passes it."""

    __slots__ = ("kept", "place")

    def __init__(self, kept: dict[int, Tensor], place: int) -> None:
        self.kept, self.place = kept, place

    def __call__(self, gradient: Tensor) -> None:
        self.kept[self.place] = gradient.detach()


def inner(module: nn.Module) -> nn.Module:
    """The module itself where it was given to `torch.compile`."""
    original = getattr(module, "_orig_mod", None)
    return original if isinstance(original, nn.Module) else module


def autocast_now() -> dict[str, torch.dtype]:
    """The autocast regions in force, by device."""
    found = {}
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            found[device] = torch.get_autocast_dtype(device)
    return found


def outputs_in(output: Any, depth: int = 3) -> Iterator[Tensor]:
    """Every floating-point tensor a model returned, in a fixed order."""
    if type(output) in TENSORS or is_tensor(output):
        if output.is_floating_point():
            yield output
    elif depth and isinstance(output, Mapping):
        for value in output.values():
            yield from outputs_in(value, depth - 1)
    elif depth and isinstance(output, list | tuple):
        for value in output:
            yield from outputs_in(value, depth - 1)
    elif depth and hasattr(output, "__dataclass_fields__"):
        for value in vars(output).values():
            yield from outputs_in(value, depth - 1)


def detached(value: Any) -> Any:
    """The same arguments as leaves: what came from an earlier graph can still carry a gradient, and ends here."""
    if is_tensor(value):
        return value.detach().requires_grad_(value.requires_grad) if value.grad_fn is not None else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(detached(item) for item in value))
    if type(value) in (list, tuple):
        return type(value)(detached(item) for item in value)
    if type(value) is dict:
        return {key: detached(item) for key, item in value.items()}
    return value


def as_leaves(value: Any) -> Any:
    """The same value, without the graph behind it: that graph has been used and freed."""
    if is_tensor(value):
        return value if value.grad_fn is None else value.detach().requires_grad_(value.requires_grad)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(as_leaves(item) for item in value))
    if type(value) not in (list, tuple, dict) or len(value) > _MAX_LIST:
        return value
    if all(tensor.grad_fn is None for tensor in tensors_in(value)):
        return value
    if type(value) is dict:
        return {key: as_leaves(item) for key, item in value.items()}
    return type(value)(as_leaves(item) for item in value)


@contextmanager
def gradients_kept(parameters: list[Tensor]) -> Iterator[None]:
    """Inside, `.grad` may be anything; afterwards it is the very object it was."""
    before = [(parameter, parameter.grad) for parameter in parameters]
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient
