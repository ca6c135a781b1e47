"""The reference, target or teacher is the network that is trained.

What it sees
    In one step a module is called with gradients and another one without, neither contains the other, and all their
    parameters are the same memory. Or one module is called both ways under two names of the model. Or the difference
    between the trained model's values and the reference's is exactly zero for every row that enters a log-sigmoid.
    Or a distance of the weights from earlier ones is one from themselves.

Why it hurts
    A comparison with a reference that moves along says nothing: a preference loss stays at log 2, a penalty for moving
    away stays at zero, a bootstrapped target chases itself.

Smallest example
    reference = model
    # fixed
    reference = copy.deepcopy(model).requires_grad_(False)
    anchor = [parameter.detach().clone() for parameter in model.parameters()]

What to do
    Make the reference a deep copy, once, before training.

Safety
    It changes nothing. Networks that share a trunk, wrappers around one module, and one model evaluated without
    gradients (old log-probabilities, validation) are not reported. A difference of zero counts only after updates: at
    the first step it is right.

References
    https://arxiv.org/abs/2305.18290
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from ....records import Finding
from ....records.rules import Rule
from ..autograd_graph import VIEWS, GraphNode, LossGraph
from ..graph_findings import read, seen

RULE = Rule("SY448", "reference_aliased", "The reference, target or teacher is the network that is trained.")
_LINEAR = VIEWS | {"Mul", "Div", "Sub", "Add", "Neg", "Sum", "Mean"}
_STEPS = 12


class ModuleCall(NamedTuple):
    """One call of a module that is no part of another call."""

    module: nn.Module
    with_grad: bool
    name: str = ""


def judge(calls: Sequence[ModuleCall], model: nn.Module | None = None) -> Finding | None:
    """Pure; compares addresses. `model` is whatever holds them, if anything does."""
    trained = {id(call.module): call for call in calls if call.with_grad}
    for call in (each for each in calls if not each.with_grad):
        for other in trained.values():
            if call.module is other.module:
                names = _names(model, call.module)
                if len(names) < 2:
                    continue
            elif _share_all(call.module, other.module):
                names = [other.name or type(other.module).__name__, call.name or type(call.module).__name__]
            else:
                continue
            return seen(
                RULE,
                names[1],
                f"{names[1]}, which is called without gradients, has the same parameters as {names[0]}, which is "
                "trained",
                names=names,
            )
    return None


def judge_graph(graph: LossGraph) -> Finding | None:
    """Whether a margin against something without gradient is exactly zero for every row. Ask after an update."""
    margins: list[tuple[GraphNode, Tensor]] = []
    for node in graph.named("LogSigmoid", "Softplus"):
        margin = graph.saved(node, "self")
        if margin is not None and margin.numel() > 1 and _subtracts_a_constant(graph, node):
            margins.append((node, margin))
    largest = read([margin.abs().amax() for _, margin in margins])
    if not margins or any(largest):
        return None
    return seen(
        RULE,
        "the margin",
        "the difference from the reference is exactly zero for every row, although the weights have changed since the "
        "start",
        rows=margins[0][1].numel(),
        op=margins[0][0].name,
    )


def _subtracts_a_constant(graph: LossGraph, node: GraphNode) -> bool:
    """Whether a linear function of the trained model's values, minus something without gradient, enters this op."""
    waiting, seen_nodes = [(node, 0)], set()
    while waiting:
        each, steps = waiting.pop()
        if each.name == "Sub" and None in each.next:
            return True
        if each.index in seen_nodes or steps > _STEPS or (steps and each.name not in _LINEAR):
            continue
        seen_nodes.add(each.index)
        waiting += [(inside, steps + 1) for inside in graph.inputs(each)]
    return False


def _names(model: nn.Module | None, module: nn.Module) -> list[str]:
    if model is None:
        return []
    return [name for name, each in model.named_modules(remove_duplicate=False) if each is module and name]


def _share_all(one: nn.Module, other: nn.Module) -> bool:
    if any(each is other for each in one.modules()) or any(each is one for each in other.modules()):
        return False
    first, second = _addresses(one), _addresses(other)
    return bool(first) and first == second


def _addresses(module: nn.Module) -> set[tuple[int, int]]:
    """Where its parameters are; empty where one has no memory that could be compared."""
    places = {(p.untyped_storage().data_ptr(), int(p.storage_offset())) for p in module.parameters()}
    return set() if any(place == 0 for place, _ in places) else places


def _calls(reference: nn.Module, policy: nn.Module) -> tuple[Sequence[ModuleCall]]:
    return ([ModuleCall(policy, True, "policy"), ModuleCall(reference, False, "reference")],)


def SPECIMEN() -> tuple[Sequence[ModuleCall]]:
    policy, reference = nn.Linear(4, 4), nn.Linear(4, 4)
    reference.weight, reference.bias = policy.weight, policy.bias
    return _calls(reference, policy)


def NEAR_MISS() -> tuple[Sequence[ModuleCall]]:
    """A copy with the same values."""
    policy, reference = nn.Linear(4, 4), nn.Linear(4, 4)
    reference.load_state_dict(policy.state_dict())
    return _calls(reference, policy)
