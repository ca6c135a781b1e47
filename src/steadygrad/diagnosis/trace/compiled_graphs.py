"""Where in compiled code a bad value is made: op, module, line and rows, for any backend of torch.compile.

The step is replayed with the model compiled again by the same backend, through a spy that keeps each graph with what it
was given. The first graph whose results, or gradients, are bad where the same graph is finite in eager is guilty. Then
ever shorter beginnings of it are compiled and the rest is run in eager: the shortest one that still fails ends with the
op that was compiled wrong, and the first bad value after it is the origin.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.torch_private import OpOverload, tree_leaves
from ...records import Origin
from ..interventions.backend.compiled import Recompiled, compiled_apart
from ..isolation.resource_limits import limits
from ..replay.replay_step import replay
from ..replay.replayable import Replayable
from .user_frames import _kind

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
SHARE_OF_TIME = 0.5
"""The search for the op takes at most this share of the time of a diagnosis: remedies come after it."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(slots=True)
class GraphCall:
    """One call of a compiled graph: the graph as dynamo made it, its backend, what it was given and what came back."""

    graph: fx.GraphModule
    backend: Backend
    inputs: list[Any]
    base: str
    """The module that the graph's own paths begin at."""
    gradients: list[Tensor | None] = field(default_factory=list)
    """Of its results, as backward brought them."""


@dataclass(frozen=True, slots=True)
class FoundInGraph:
    """The answer. `rows` are those of the bad value, where its first dimension is as long as the batch."""

    origin: Origin
    rows: tuple[int, ...] | None = None
    note: str = ""


class _Spied(Recompiled):
    """The step as compiled code; `guilty` is the first graph that does worse than eager."""

    def __init__(self, *, backward: bool) -> None:
        super().__init__()
        self.backward = backward
        self.calls: list[GraphCall] = []
        self.guilty: GraphCall | None = None
        self._names: dict[int, str] = {}

    def prepared(self, replayable: Replayable) -> None:
        self._names = {id(module): name for name, module in replayable.model.named_modules()}
        super().prepared(replayable)

    def recompiled(self, plain: Callable[..., Any], backend: Backend, dynamic: bool | None) -> Callable[..., Any]:
        def spying(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            kept = _copied(graph)
            run = backend(graph, inputs)

            def observed(*args: Any) -> Any:
                out = run(*args)
                if self.guilty is None:
                    self._look(GraphCall(kept, backend, list(args), self._base(plain)), out)
                return out

            return observed

        made: Callable[..., Any] = compiled_apart(plain, backend=spying, dynamic=dynamic)
        return made

    def _base(self, plain: Callable[..., Any]) -> str:
        """The module whose code called the graph: the nearest frame whose first variable is a module of the model."""
        frame = sys._getframe(2)
        for _ in range(40):
            first = frame.f_code.co_varnames[:1]
            name = self._names.get(id(frame.f_locals.get(first[0]))) if first else None
            if name is not None and not frame.f_code.co_filename.endswith("module.py"):
                return name
            if frame.f_back is None:
                break
            frame = frame.f_back
        return self._names.get(id(getattr(plain, "__self__", None)), "")

    def _look(self, call: GraphCall, out: Any) -> None:
        results = [item for item in tree_leaves(out) if isinstance(item, Tensor) and item.is_floating_point()]
        if self.backward:
            self.calls.append(call)
            call.gradients = [None] * len(results)
            for number, result in enumerate(results):
                if result.requires_grad:
                    result.register_hook(_keeper(call, number))  # type: ignore[no-untyped-call]
        elif any(_is_bad(result) for result in results) and _worse_than_eager(call, results):
            call.inputs = [item.detach().clone() if isinstance(item, Tensor) else item for item in call.inputs]
            self.guilty = call


def _keeper(call: GraphCall, number: int) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        call.gradients[number] = gradient.detach()

    return keep


def _copied(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy that the backend cannot change."""
    fresh = fx.Graph()
    out = fresh.graph_copy(graph.graph, val_map={})
    fresh.output(out)
    return fx.GraphModule(graph, fresh)


def _is_bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())


def _worse(found: Any, eager: Any) -> bool:
    """Whether a value is bad in a place where eager code gives a finite number."""
    if not isinstance(found, Tensor) or not found.is_floating_point() or not _is_bad(found):
        return False
    if not isinstance(eager, Tensor) or eager.shape != found.shape:
        return True
    return bool((~torch.isfinite(found) & torch.isfinite(eager)).any())


def _worse_than_eager(call: GraphCall, results: Sequence[Tensor]) -> bool:
    with torch.no_grad(), torch.random.fork_rng(devices=_devices(call.inputs)):
        eager = [item for item in tree_leaves(call.graph(*call.inputs)) if isinstance(item, Tensor)]
    eager = [item for item in eager if item.is_floating_point()]
    return any(_worse(a, b) for a, b in zip(results, eager, strict=False))


def _devices(items: Sequence[Any]) -> list[int]:
    tensors = [item for item in items if isinstance(item, Tensor) and item.device.type == "cuda"]
    return sorted({item.device.index for item in tensors})


def find_in_compiled_code(replayable: Replayable, *, backward: bool, num_rows: int) -> FoundInGraph | None:
    """The origin of a step that fails as compiled code only; None where no graph of the model does worse than eager.

    Raises what the backend raises on a part of a graph.
    """
    spied = _Spied(backward=backward)
    try:
        replay(replayable, change=spied, until="backward")
    finally:
        spied.undo(replayable)
    calls = [spied.guilty] if spied.guilty is not None else list(reversed(spied.calls))
    for call in calls:
        search = _Search(call, backward=backward)
        if search.reproduces():
            return search.answer(num_rows)
    return None


class _Search:
    """One guilty graph, compiled in ever shorter beginnings."""

    def __init__(self, call: GraphCall, *, backward: bool) -> None:
        self.call, self.backward = call, backward
        self.nodes = [node for node in call.graph.graph.nodes if node.op not in ("placeholder", "output")]
        self.eager: dict[fx.Node, Any] = {}
        if not backward:
            self._run(0, self.eager)
        self.eager = {node: value for node, value in self.eager.items() if _is_odd(value)}

    def reproduces(self) -> bool:
        """Whether the whole graph fails by itself, and not in eager."""
        came = not self.backward or any(gradient is not None for gradient in self.call.gradients)
        return came and self._fails(len(self.nodes)) and not (self.backward and self._fails(0))

    def _fails(self, count: int) -> bool:
        return bool(self._bad_gradients(count)) if self.backward else self._first_bad(count) is not None

    def _run(self, count: int, values: dict[fx.Node, Any]) -> Any:
        """The graph with its first `count` ops compiled and the others in eager; what each op gave goes to `values`."""
        graph = self.call.graph
        given = [node for node in graph.graph.nodes if node.op == "placeholder"]
        values.update(zip(given, self.call.inputs, strict=True))
        if count:
            part, made = _beginning(graph, given, self.nodes[:count])
            run = self.call.backend(part, list(self.call.inputs))
            values.update(zip(made, run(*self.call.inputs), strict=True))
        interpreter = fx.Interpreter(graph)
        interpreter.env = values
        for node in self.nodes[count:]:
            values[node] = interpreter.run_node(node)
        out = next(node for node in graph.graph.nodes if node.op == "output")
        return interpreter.run_node(out)

    def _first_bad(self, count: int) -> tuple[fx.Node, Tensor] | None:
        """The first op whose value is bad where eager code is finite, of those whose values are seen."""
        values: dict[fx.Node, Any] = {}
        with torch.random.fork_rng(devices=_devices(self.call.inputs)):
            self._run(count, values)
        for node in self.nodes:
            value = values.get(node)
            # Only what is not finite in eager was kept of it: everything else is finite there.
            if (
                isinstance(value, Tensor)
                and _is_odd(value)
                and (node not in self.eager or _worse(value, self.eager[node]))
            ):
                return node, value
        return None

    def _bad_gradients(self, count: int) -> list[Tensor]:
        """The bad gradients of what the graph was given, for the gradients of its results that came in."""
        inputs = [
            item.detach().requires_grad_(item.requires_grad) if isinstance(item, Tensor) else item
            for item in self.call.inputs
        ]
        own, self.call.inputs = self.call.inputs, inputs
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=_devices(inputs)):
                out = [t for t in tree_leaves(self._run(count, {})) if isinstance(t, Tensor) and t.is_floating_point()]
                pairs = [
                    (t, g) for t, g in zip(out, self.call.gradients, strict=True) if g is not None and t.requires_grad
                ]
                leaves = [item for item in inputs if isinstance(item, Tensor) and item.requires_grad]
                if not pairs or not leaves or any(_is_bad(gradient) for _, gradient in pairs):
                    return []
                grads = torch.autograd.grad(
                    [t for t, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True, materialize_grads=False
                )
        finally:
            self.call.inputs = own
        return [gradient for gradient in grads if gradient is not None and _is_bad(gradient)]

    def answer(self, num_rows: int) -> FoundInGraph:
        """By bisection: the longest beginning that does not fail, and the op after it."""
        good, bad = 0, len(self.nodes)
        while bad - good > 1:
            if limits().elapsed > SHARE_OF_TIME * limits().seconds:
                between = f"{_name(self.nodes[good])} and {_name(self.nodes[bad - 1])}"
                origin = Origin(phase="backward" if self.backward else "forward")
                return FoundInGraph(origin, note=f"compiled code fails between {between}; the time was used up")
            middle = (good + bad) // 2
            good, bad = (good, middle) if self._fails(middle) else (middle, bad)
        node, value = self.nodes[bad - 1], None
        if self.backward:
            bads = self._bad_gradients(bad)
            value = next((g for g in bads if g.dim() and g.shape[0] == num_rows), None)
        elif (found := self._first_bad(bad)) is not None:
            node, value = found
        wrong = self.nodes[bad - 1]
        note = "" if wrong is node else f"{_name(wrong)} is computed otherwise than in eager ({_source(wrong)[0]})"
        return FoundInGraph(self._origin(node), _rows(value, num_rows), note)

    def _origin(self, node: fx.Node) -> Origin:
        source, line = _source(node)
        module = _module(node, self.call.base)
        forward = "forward" if module is not None else "loss"
        return Origin(
            phase="backward" if self.backward else forward,
            op=_name(node),
            module=module,
            source=source or None,
            code_line=line or None,
            stack=(source,) if source else (),
        )


def _is_odd(value: Any) -> bool:
    return isinstance(value, Tensor) and _is_bad(value)


def _beginning(
    graph: fx.GraphModule, given: Sequence[fx.Node], nodes: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """The first ops as a graph that returns every value the rest needs, and the nodes of those values."""
    inside = set(nodes)
    needed = [node for node in nodes if any(user not in inside for user in node.users) or not node.users]
    fresh = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in (*given, *nodes):
        copies[node] = fresh.node_copy(node, lambda other: copies[other])
    fresh.output(tuple(copies[node] for node in needed))
    return fx.GraphModule(graph, fresh), needed


def _name(node: fx.Node) -> str:
    """The name of an op, function or method, without underscores around it."""
    target = node.target
    if isinstance(target, OpOverload):
        target = target._schema.name.split("::")[-1]
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.rpartition(".")[2].strip("_") or name


def _module(node: fx.Node, base: str) -> str | None:
    """The module that ran an op: its path in the graph begins at the module whose code was compiled."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    inside = path.partition("]")[2].strip(".") if "]" in path else ""
    return ".".join(part for part in (*base.split("."), inside) if part not in ("", "_orig_mod"))


def _source(node: fx.Node) -> tuple[str, str]:
    """The user's innermost line that an op comes from, as file:line and as text."""
    frames = [(found["file"], int(found["line"])) for found in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [frame for frame in frames if _kind(frame[0]) == "user"] or frames
    if not own:
        return "", ""
    file, line = own[-1]
    return f"{file}:{line}", linecache.getline(file, line).strip()


def _rows(value: Tensor | None, num_rows: int) -> tuple[int, ...] | None:
    if value is None or not value.dim() or value.shape[0] != num_rows:
        return None
    bad = (~torch.isfinite(value)).reshape(num_rows, -1).any(1).nonzero().flatten().tolist()
    return tuple(bad) if 0 < len(bad) < num_rows else None
