"""Parameters are frozen that were meant to learn.

What it sees
    Either the frozen members of a list of layers are what matching names by their beginning gives: `layers.1` has also
    frozen `layers.10` and `layers.11`. Or an embedding table is frozen while many of the rows that a batch reads are
    all zeros.

Why it hurts
    The layers that were caught by accident stay what they were; zero rows stay zero, so their words carry no
    information.

Smallest example
    for name, p in model.named_parameters(): p.requires_grad_(not name.startswith(("layers.0", "layers.1")))
    # fixed
    for name, p in model.named_parameters(): p.requires_grad_(not name.startswith(("layers.0.", "layers.1.")))

What to do
    End the prefix with a dot, or freeze by module: `model.layers[:2].requires_grad_(False)`. Train an embedding whose
    words are missing from the pretrained table.

Safety
    It changes nothing. Frozen teachers, backbones and any contiguous range of layers are not reported.

References
    https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ....records import Finding
from ....records.rules import Rule
from ...tensors.foreign_objects import isinstance
from ...tensors.readable_tensors import has_values
from ..graph_findings import NAMED, read, seen

RULE = Rule("SY447", "frozen_by_mistake", "Parameters are frozen that were meant to learn.")
ZERO_ROWS = 0.2
MIN_ROWS = 4


def judge(model: nn.Module, rows_read: Mapping[int, Tensor] | None = None) -> Finding | None:
    """Looks at flags. `rows_read` has the indices that a batch looked up, by the id of the embedding module."""
    return _by_prefix(model) or _zero_rows(model, rows_read or {})


def _by_prefix(model: nn.Module) -> Finding | None:
    for name, holder in model.named_modules():
        if not isinstance(holder, nn.ModuleList | nn.Sequential) or len(holder) <= 10:
            continue
        members = {index: list(member.parameters()) for index, member in enumerate(holder)}
        members = {index: parameters for index, parameters in members.items() if parameters}
        frozen = {index for index, each in members.items() if any(not p.requires_grad for p in each)}
        caught = _caught(frozen, set(members))
        if caught:
            prefix = f"{name}." if name else ""
            names = [f"{prefix}{index}" for index in sorted(caught)]
            meant = ", ".join(f"{prefix}{index}" for index in sorted(frozen - caught))
            return seen(
                RULE,
                names[0],
                f"{', '.join(names)} are frozen together with {meant}, as matching names by their beginning does",
                names=names[:NAMED],
                frozen=sorted(frozen),
            )
    return None


def _caught(frozen: set[int], members: set[int]) -> set[int]:
    """The members that only the text of their index explains, beside a contiguous range; empty where none are."""
    if not frozen or frozen == set(range(min(frozen), max(frozen) + 1)) & members:
        return set()
    meant = {index for index in frozen if index < 10}
    if not meant or meant != set(range(min(meant), max(meant) + 1)) & members:
        return set()
    matched = {index for index in members if any(str(index).startswith(str(each)) for each in meant)}
    return frozen - meant if frozen == matched else set()


def _zero_rows(model: nn.Module, rows_read: Mapping[int, Tensor]) -> Finding | None:
    for name, table in model.named_modules():
        indices = rows_read.get(id(table))
        if indices is None or not isinstance(table, nn.Embedding) or table.weight.requires_grad:
            continue
        weight = table.weight.detach()
        if not has_values(weight):
            continue
        used = torch.unique(indices.detach())
        if table.padding_idx is not None:
            used = used[used != table.padding_idx]
        if len(used) < MIN_ROWS:
            continue
        (zero,) = read([(weight[used.to(weight.device)] == 0).all(1).sum()])
        if zero >= MIN_ROWS and zero >= ZERO_ROWS * len(used):
            return seen(
                RULE,
                f"{name}.weight",
                f"{name}.weight is frozen, and {zero:.0f} of the {len(used)} rows that this batch reads are all zeros",
                names=[f"{name}.weight"],
                zero_rows=int(zero),
                rows=len(used),
            )
    return None


def _layers(frozen: tuple[int, ...]) -> tuple[nn.Module]:
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))
    for index in frozen:
        layers[index].requires_grad_(False)
    return (nn.ModuleDict({"layers": layers}),)


def SPECIMEN() -> tuple[nn.Module]:
    return _layers((0, 1, 10, 11))


def NEAR_MISS() -> tuple[nn.Module]:
    """The first ten layers, by intention."""
    return _layers(tuple(range(10)))
