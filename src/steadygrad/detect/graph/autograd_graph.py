"""The graph of a loss as plain nodes: walked once, never changed, and let go when the look is over.

The walk reads names and edges only. Shapes and saved tensors are read when a rule asks for them; a saved tensor behind
a hook (checkpointing, offloading) is not unpacked, because unpacking would run user code again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..tensors.foreign_objects import getattr, isinstance
from ..tensors.readable_tensors import has_values
from ..tensors.torch_private import without_torch_function

MAX_NODES = 20_000
_NEAR = 24
"""How many nodes away from an activation the layer that made it is looked for."""
LEAF = "AccumulateGrad"
VIEWS = frozenset(
    {
        "Alias", "AsStrided", "Clone", "Contiguous", "Copy", "Expand", "Flatten", "Gather", "Index",
        "IndexSelect", "MaskedSelect", "Movedim", "Narrow", "Permute", "Reshape", "ReshapeAlias", "Select", "Slice",
        "Split", "SplitWithSizes", "Squeeze", "Swapaxes", "T", "ToCopy", "Transpose", "Unbind", "Unflatten",
        "UnsafeView", "Unsqueeze", "View", "ViewAs",
    }
)  # fmt: skip
"""Ops that hand on the values they are given, in another shape, order or dtype, or some of them."""


@dataclass(slots=True)
class GraphNode:
    """One op of the forward pass, by its place in the graph's backward."""

    index: int
    name: str
    next: tuple[int | None, ...] = ()
    """The nodes that made its inputs, in the order of the op's arguments; None for an input that needs no gradient."""
    consumers: list[int] = field(default_factory=list)
    leaf: Tensor | None = None
    handle: Any = None


@dataclass(slots=True)
class LossGraph:
    """All nodes of a loss, inputs before the ops that use them: the loss itself is the last one."""

    nodes: list[GraphNode] = field(default_factory=list)
    names: Mapping[int, str] = field(default_factory=dict)
    """What the leaves are called, by id."""
    num_rows: int | None = None
    truncated: bool = False

    def named(self, *names: str) -> Iterator[GraphNode]:
        """The nodes of these ops."""
        return (node for node in self.nodes if node.name in names)

    def inputs(self, node: GraphNode) -> list[GraphNode]:
        return [self.nodes[index] for index in node.next if index is not None]

    def leaves(self) -> list[Tensor]:
        """Every leaf tensor that backward would reach."""
        return [node.leaf for node in self.nodes if node.leaf is not None]

    def shape(self, node: GraphNode) -> tuple[int, ...] | None:
        """The shape of its (first) output; None where torch does not say."""
        try:
            metadata = node.handle._input_metadata
            return tuple(int(size) for size in metadata[0].shape) if len(metadata) == 1 else None
        except Exception:
            return None

    def saved(self, node: GraphNode, what: str) -> Tensor | None:
        """A tensor that was saved for backward, such as "result"; None where reading it could run or raise anything."""
        value = saved_tensor(node.handle, what)
        return value if value is not None and has_values(value) else None

    def number(self, node: GraphNode, what: str) -> float | int | None:
        """A number that was saved, such as "dim", as Python counts it: -1 for the last."""
        value = getattr(node.handle, f"_saved_{what}", None)
        if isinstance(value, int) and value >= 2**63:
            return value - 2**64
        return value if isinstance(value, int | float) else None

    def through_views(self, node: GraphNode) -> GraphNode:
        """The node that computed the values of this one."""
        while node.name in VIEWS and node.next and node.next[0] is not None:
            node = self.nodes[node.next[0]]
        return node

    def weights(self, node: GraphNode) -> list[Tensor]:
        """The leaves that enter an op directly, or through views and casts."""
        found = (self.through_views(each).leaf for each in self.inputs(node))
        return [leaf for leaf in found if leaf is not None]

    def matrices(self, node: GraphNode) -> list[Tensor]:
        """Those of them with two dimensions or more: the weights of a layer, not gains or biases."""
        return [leaf for leaf in self.weights(node) if leaf.dim() > 1]

    def layer_before(self, node: GraphNode) -> tuple[GraphNode, Tensor] | None:
        """The nearest op with a weight matrix on the way to an activation, and the matrix."""
        waiting, seen = deque(self.inputs(node)), {node.index}
        while waiting and len(seen) < _NEAR:
            each = waiting.popleft()
            if each.index in seen or each.leaf is not None:
                continue
            seen.add(each.index)
            if matrices := self.matrices(each):
                return each, matrices[0]
            waiting.extend(self.inputs(each))
        return None

    def layers_after(self, node: GraphNode) -> Iterator[Tensor]:
        """The weight matrices of the next layers between an activation and the loss, nearest first."""
        waiting, seen = deque([node.index]), {node.index}
        while waiting:
            for index in self.nodes[waiting.popleft()].consumers:
                if index in seen:
                    continue
                seen.add(index)
                consumer = self.nodes[index]
                if matrices := self.matrices(consumer):
                    yield from matrices
                else:
                    waiting.append(index)

    def called(self, weight: Tensor) -> str:
        """The module of a parameter by name; its shape where it has none."""
        name = self.names.get(id(weight), "")
        return name.rpartition(".")[0] or name or f"a parameter of shape {tuple(weight.shape)}"

    def close(self) -> None:
        """Let go of the graph and the parameters."""
        for node in self.nodes:
            node.handle = node.leaf = None
        self.nodes = []


def saved_tensor(handle: Any, what: str) -> Tensor | None:
    """A plain tensor that an autograd node saved; None where reading it could run or raise anything."""
    raw = getattr(handle, f"_raw_saved_{what}", None)
    if raw is None or getattr(raw, "unpack_hook", raw) is not None:
        return None
    try:
        value = getattr(handle, f"_saved_{what}")
    except Exception:  # freed by a backward, or changed in place since
        return None
    return value.detach() if type(value) in (Tensor, torch.nn.Parameter) else None


@contextmanager
def walked(loss: Tensor, *, names: Mapping[int, str] | None = None, num_rows: int | None = None) -> Iterator[LossGraph]:
    """The graph of a loss, closed afterwards. Costs about a microsecond a node; reads no values.

    A leaf whose class takes over torch's functions is read without that class: it may refuse them, or count the calls.
    """
    with without_torch_function():
        graph = walk(loss, names=names, num_rows=num_rows)
        try:
            yield graph
        finally:
            graph.close()


def walk(loss: Tensor, *, names: Mapping[int, str] | None = None, num_rows: int | None = None) -> LossGraph:
    """The same, to be closed by the caller."""
    graph = LossGraph(names=names or {}, num_rows=num_rows)
    places: dict[Any, int] = {}
    open_: dict[Any, tuple[Any, ...]] = {}
    stack = [loss.grad_fn] if loss.grad_fn is not None else []
    while stack:
        handle = stack[-1]
        if handle in places:
            stack.pop()
        elif handle not in open_:
            if len(open_) >= MAX_NODES:
                graph.truncated = True
                open_[handle] = ()
                continue
            open_[handle] = edges = tuple(edge for edge, _ in handle.next_functions)
            stack += [edge for edge in edges if edge is not None and edge not in open_]
        else:
            stack.pop()
            places[handle] = _add(graph, handle, open_[handle], places)
    return graph


def _add(graph: LossGraph, handle: Any, edges: Collection[Any], places: Mapping[Any, int]) -> int:
    name = _short(handle.name())
    node = GraphNode(len(graph.nodes), name, tuple(places.get(edge) for edge in edges), handle=handle)
    if name == LEAF:
        node.leaf = getattr(handle, "variable", None)
    for index in node.next:
        if index is not None:
            graph.nodes[index].consumers.append(node.index)
    graph.nodes.append(node)
    return node.index


@cache
def _short(name: str) -> str:
    """`SoftmaxBackward0` as `Softmax`."""
    return name.rpartition("::")[2].rstrip("0123456789").removesuffix("Backward")
