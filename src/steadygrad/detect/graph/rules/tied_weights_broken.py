"""Two weights that were one tensor are trained as two.

What it sees
    An embedding table and an output layer hold the same values in different memory, and both are trained; or a model
    or its configuration declares such a tie (`tie_word_embeddings`, another switch for tied weights,
    `_tied_weights_keys`) and the two are different tensors.

Why it hurts
    The tie that the design counts on is gone after the first update. A save that writes one of them, or a load that
    ties them again, drops what the other one learned.

Smallest example
    head.weight = torch.nn.Parameter(embedding.weight.clone())
    # fixed
    head.weight = embedding.weight

What to do
    Assign the parameter itself and do it last: after moving, casting, copying or resizing the model (`tie_weights()`).

Safety
    It changes nothing; at most 256 rows of each pair are compared. A model that declares that the two are not tied may
    start with equal values.

References
    https://arxiv.org/abs/1608.05859
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ....records import Finding
from ....records.rules import Rule
from ...tensors.foreign_objects import getattr, hasattr, isinstance
from ...tensors.readable_tensors import has_values
from ..graph_findings import read, seen

RULE = Rule("SY446", "tied_weights_broken", "Two weights that were one tensor are trained as two.")
EQUAL = 0.5
MIN_ROWS = 4
_ROWS = 256
_ABOUT_TIES = re.compile(r"(^|_)(tie|tied|tying)(_|$)")
_OF_WEIGHTS = re.compile(r"^(tie|tied|tying)$|weight|emb|head|output|proj")


def judge(model: nn.Module) -> Finding | None:
    """Compares some rows of each embedding with those of output layers of its shape. One host read for each pair."""
    declared = _declared(model)
    if declared is False:
        return None
    names = {id(p): name for name, p in model.named_parameters()}
    ends = _ends(model) if declared else None
    for table, output in _pairs(model) if ends is None else [ends]:
        if not _both_trained(table, output) or _one_storage(table, output):
            continue
        share = _equal_rows(table, output)
        if ends is None and share < EQUAL:
            continue
        one, other = names.get(id(table), "the embedding"), names.get(id(output), "the output layer")
        equal = f"{share:.0%} of their rows are equal to the bit"
        why = equal if ends is None else "the model declares them tied"
        return seen(
            RULE,
            one,
            f"{one} and {other} are two tensors that are trained apart, though {why}",
            names=[one, other],
            equal_rows=share,
            declared=ends is not None,
        )
    return None


def _declared(model: nn.Module) -> bool | None:
    """What the model and its configuration say of a tie; None where they say nothing."""
    config = getattr(model, "config", None)
    switches = {name: value for holder in (model, config) for name, value in _switches(holder)}
    if "tie_word_embeddings" in switches:
        return switches["tie_word_embeddings"]
    if switches:
        return any(switches.values())
    return True if config is None and getattr(model, "_tied_weights_keys", None) else None


def _switches(holder: Any) -> Iterator[tuple[str, bool]]:
    """Switches of an object, its class or a dictionary that are about tied weights."""
    if holder is None:
        return
    found: dict[Any, Any] = dict(holder) if isinstance(holder, Mapping) else {}
    for each in (*reversed(type(holder).__mro__), holder) if not found else ():
        found |= getattr(each, "__dict__", {})
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, bool) or "encoder" in name:
            continue
        if _ABOUT_TIES.search(name) and _OF_WEIGHTS.search(name):
            yield name, value


def _ends(model: nn.Module) -> tuple[Tensor, Tensor] | None:
    """The two weights that a declared tie is about; None where the model has no output layer of that kind."""
    table, output = (_weight(model, f"get_{which}_embeddings") for which in ("input", "output"))
    if table is None or output is None:
        table, output = _listed(model)
    if (table is None or output is None) and not hasattr(model, "get_output_embeddings"):
        pairs = [pair for pair in _pairs(model) if len(pair[0]) > pair[0].shape[1]]
        table, output = pairs[0] if len(pairs) == 1 else (None, None)
    return (table, output) if table is not None and output is not None and table.shape == output.shape else None


def _listed(model: Any) -> tuple[Tensor | None, Tensor | None]:
    """The tie that a model lists as transformers does: one name, or a name and what it is tied to."""
    listed = getattr(model, "_tied_weights_keys", None)
    if not isinstance(listed, list | tuple | dict) or len(listed) != 1:
        return None, None
    parameters = dict(model.named_parameters(remove_duplicate=False))
    output = parameters.get(next(iter(listed)))
    if isinstance(listed, dict):
        return parameters.get(next(iter(listed.values()))), output
    tables = {id(part.weight): part.weight for part in model.modules() if isinstance(part, nn.Embedding)}
    alike = [table for table in tables.values() if output is not None and table.shape == output.shape]
    return (alike[0] if len(alike) == 1 else None), output


def _pairs(model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Tables and layers that may have been one tensor: only equal values tell."""
    modules = list(model.modules())
    for table in (each.weight for each in modules if isinstance(each, nn.Embedding)):
        for layer in modules:
            if isinstance(layer, nn.Linear) and layer.weight.shape == table.shape:
                yield table, layer.weight


def _weight(model: Any, ask: str) -> Tensor | None:
    try:
        weight = getattr(model, ask)().weight
    except Exception:  # not every model has both
        return None
    return weight if isinstance(weight, Tensor) else None


def _both_trained(*weights: Tensor) -> bool:
    return all(each.requires_grad and has_values(each.detach()) and each.numel() for each in weights)


def _one_storage(one: Tensor, other: Tensor) -> bool:
    return one is other or one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _equal_rows(one: Tensor, other: Tensor) -> float:
    """The share of rows, of some that are not constant, that are equal to the bit."""
    if one.dtype != other.dtype or one.device != other.device:
        return 0.0
    step = max(1, len(one) // _ROWS)
    first, second = one.detach()[::step], other.detach()[::step]
    varied = (first != first[:, :1]).any(1)
    equal, counted = read([((first == second).all(1) & varied).sum(), varied.sum()])
    return equal / counted if counted >= MIN_ROWS else 0.0


def _model(head: Tensor) -> tuple[nn.Module]:
    model = nn.ModuleDict({"embed": nn.Embedding(32, 8), "head": nn.Linear(8, 32, bias=False)})
    model["head"].weight = nn.Parameter(head)
    return (model,)


def SPECIMEN() -> tuple[nn.Module]:
    (model,) = _model(torch.zeros(32, 8))
    model["head"].weight = nn.Parameter(model["embed"].weight.detach().clone())  # type: ignore[index]
    return (model,)


def NEAR_MISS() -> tuple[nn.Module]:
    """Two tables that never were one."""
    return _model(torch.randn(32, 8))
