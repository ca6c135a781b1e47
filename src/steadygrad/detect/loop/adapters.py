"""Low-rank adapters of a model, known by their shapes: two small trained matrices beside a frozen large one. A rank as
large as the layer is known by the zeros that one of the two begins with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..tensors.readable_tensors import describable

_MAX_MATRICES = 12


@dataclass(frozen=True, slots=True)
class Adapter:
    """`name` is the module that holds both; `outer` the matrix whose gradient is there from the first step on."""

    name: str
    module: nn.Module
    outer: Tensor


def find_adapters(model: nn.Module) -> list[Adapter]:
    """Every low-rank adapter, in the order of the model's modules."""
    found: list[Adapter] = []
    for name, module in sorted(model.named_modules(), key=lambda item: -len(item[0].split(".")) if item[0] else 0):
        if any(other.name.startswith(f"{name}.") or not name for other in found):
            continue  # the innermost module that holds it
        matrices = [parameter for parameter in module.parameters() if not is_lazy(parameter) and parameter.dim() == 2]
        if 3 <= len(matrices) <= _MAX_MATRICES and (outer := _outer(matrices)) is not None:
            found.append(Adapter(name, module, outer))
    return sorted(found, key=lambda adapter: adapter.name)


def _outer(matrices: list[Tensor]) -> Tensor | None:
    trained = [matrix for matrix in matrices if matrix.requires_grad]
    for frozen in (matrix for matrix in matrices if not matrix.requires_grad):
        rows, columns = frozen.shape
        for inner in trained:
            rank = inner.shape[0]
            if inner.shape[1] != columns or rank > min(rows, columns):
                continue
            outer = next((matrix for matrix in trained if matrix.shape == (rows, rank) and matrix is not inner), None)
            if outer is None:
                continue
            if rank < min(rows, columns):
                return outer
            if len(matrices) == 3 and (closed := [each for each in (inner, outer) if _is_zero(each)]):
                return closed[0]
    return None


def _is_zero(matrix: Tensor) -> bool:
    return describable(matrix) and matrix.device.type == "cpu" and not bool(matrix.detach().any())
