"""Ask the rules: about the graph of a loss before its backward, or about model and optimizers before the first step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...records import Finding
from ..sampled.rules.parameter_not_in_optimizer import of_leaves
from ..tensors.foreign_objects import isinstance
from .autograd_graph import LossGraph, walked
from .graph_findings import Held, optimizer_of
from .rules import (
    dead_relu,
    frozen_by_mistake,
    reference_aliased,
    saturated_activation,
    softmax_over_rows,
    tied_weights_broken,
    vanishing_gradient,
    weight_decay_dominates,
)
from .rules.losses import (
    broadcasting_loss_shape,
    compared_with_itself,
    loss_without_minimum,
    softmax_twice,
    target_out_of_reach,
)

ALL = (
    softmax_twice,
    loss_without_minimum,
    target_out_of_reach,
    compared_with_itself,
    softmax_over_rows,
    broadcasting_loss_shape,
    dead_relu,
    saturated_activation,
    vanishing_gradient,
    weight_decay_dominates,
    tied_weights_broken,
    frozen_by_mistake,
    reference_aliased,
)
REPEATED = {"SY405": 2, "SY442": 3, "SY443": 3, "SY444": 3, "SY448": 2, "SY457": 3, "SY458": 3, "SY459": 3}
"""Codes that mean something only where so many different batches show them, of the same subject. For SY448 the weights
must have changed since the start, and for SY405 the parameters must not have: then something else trains them."""


Failed = Callable[[Exception], None] | None
"""What is called with the fault of a rule."""


class Confirmed:
    """Findings of several steps: which are to be reported now. Each is reported once."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()
        self._versions: dict[str, Any] = {}
        self._reported: set[tuple[str, str]] = set()

    def new(self, findings: Iterable[Finding], *, updated: bool) -> list[Finding]:
        """Those of this step that are confirmed by it. `updated`: an update has been made since the start."""
        found = []
        for finding in findings:
            key = (finding.code, finding.subject)
            if finding.code == "SY405":
                version = finding.evidence.get("version")
                if self._versions.setdefault(finding.subject, version) != version:
                    self._reported.add(key)
            # The first batch counts for all but the two that are about what an update does.
            self._seen[key] += updated or finding.code != "SY448"
            enough = self._seen[key] >= REPEATED.get(finding.code, 1) and (updated or finding.code != "SY405")
            if enough and key not in self._reported:
                self._reported.add(key)
                found.append(finding)
        return found


@torch.no_grad()
def examine_graph(
    loss: Tensor,
    *,
    parameters_in_optimizers: Held,
    named_parameters: Mapping[str, Tensor],
    num_rows: int | None = None,
    step: int = 0,
    failed: Failed = None,
) -> list[Finding]:
    """What the graph of this loss shows, before its backward. Changes nothing and keeps nothing of it.

    `parameters_in_optimizers` has the ids that all optimizers of the run hold, best as one set for each optimizer.
    Costs a few microseconds a node, and one small reduction and one host read for the activations. What torch does not
    show (compiled parts, activations behind checkpointing) is not looked at. A rule that fails is left out.
    """
    if not isinstance(loss, Tensor) or loss.grad_fn is None:
        return []
    names = {id(parameter): name for name, parameter in named_parameters.items()}
    with walked(loss, names=names, num_rows=num_rows) as graph:
        return _ask(
            step,
            (
                lambda: softmax_twice.judge(graph),
                lambda: loss_without_minimum.judge(graph),
                lambda: target_out_of_reach.judge(graph),
                lambda: compared_with_itself.judge(graph),
                lambda: softmax_over_rows.judge(graph),
                lambda: broadcasting_loss_shape.judge(graph),
                lambda: dead_relu.judge(graph),
                lambda: saturated_activation.judge(graph, parameters_in_optimizers),
                lambda: reference_aliased.judge_graph(graph),
                lambda: _not_in_optimizer(graph, parameters_in_optimizers),
            ),
            failed,
        )


def examine_setup(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    rows_read: Mapping[int, Tensor] | None = None,
    step: int = 0,
    failed: Failed = None,
) -> list[Finding]:
    """What model and optimizers show by themselves. Reads a few rows of weights; changes nothing."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return _ask(
        step,
        (
            lambda: weight_decay_dominates.judge(optimizers, names),
            lambda: tied_weights_broken.judge(model),
            lambda: frozen_by_mistake.judge(model, rows_read),
        ),
        failed,
    )


def layers_by_depth(loss: Tensor, names: Mapping[int, str]) -> list[str]:
    """The names of weights and biases in the order in which backward reaches them; empty where part of the graph is
    compiled or longer than the walk, so that no order is known. For `vanishing_gradient.judge`."""
    with walked(loss, names=names) as graph:
        if graph.truncated or any(node.name.startswith("Compiled") for node in graph.nodes):
            return []
        depth: dict[int, int] = {}
        for node in reversed(graph.nodes):
            below = depth.setdefault(node.index, 0) + 1
            for each in graph.inputs(node):
                depth[each.index] = max(depth.get(each.index, 0), below)
        leaves = [node for node in graph.nodes if node.leaf is not None and node.leaf.dim()]
        leaves.sort(key=lambda node: depth[node.index])
        return [names[id(node.leaf)] for node in leaves if id(node.leaf) in names]


def _not_in_optimizer(graph: LossGraph, held: Held) -> Finding | None:
    owner = optimizer_of(held)
    if not owner:
        return None
    outside = [leaf for leaf in graph.leaves() if isinstance(leaf, nn.Parameter) and id(leaf) not in owner]
    called = [(graph.names.get(id(leaf)) or graph.called(leaf), leaf.numel()) for leaf in outside]
    return of_leaves(called, len(graph.leaves()), version=sum(leaf._version for leaf in outside))


def _ask(step: int, rules: Iterable[Callable[[], Finding | None]], failed: Failed) -> list[Finding]:
    found = []
    for rule in rules:
        try:
            finding = rule()
        except Exception as fault:  # a graph of a kind that a rule was not written for: that rule does not judge it
            if failed is not None:
                failed(fault)
            continue
        if finding is not None:
            found.append(replace(finding, step=step))
    return found
