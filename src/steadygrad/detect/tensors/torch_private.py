"""The private functions and modules of torch that steadygrad uses, in one place.

Private classes that are only asked for by `isinstance`, and private attributes of objects (a GradScaler's scale, FSDP's
parameters), are read where they are needed.
`tests/unit/detect/test_torch_private.py` names each with what it must do, so that a version that changes one is told
apart from a bug of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype as group_by_device_and_dtype
from torch.utils._python_dispatch import (
    TorchDispatchMode,
)
from torch.utils._python_dispatch import (
    _disable_current_modes as without_dispatch_modes,
)
from torch.utils._pytree import SUPPORTED_NODES, register_pytree_node, tree_flatten, tree_leaves, tree_map

__all__ = [
    "SUPPORTED_NODES",
    "OpOverload",
    "TorchDispatchMode",
    "autograd_sequence",
    "current_autograd_node",
    "current_graph_task",
    "dynamo_counters",
    "dynamo_is_loaded",
    "fill_memory_of",
    "free_cublas_workspaces",
    "get_deterministic",
    "get_mkldnn",
    "get_precision",
    "group_by_device_and_dtype",
    "has_storage",
    "innermost_transform",
    "is_functional",
    "is_functorch_wrapped",
    "num_dispatch_modes",
    "num_function_modes",
    "outside_transforms",
    "reduced_sums_of",
    "register_pytree_node",
    "set_deterministic",
    "set_grad_enabled",
    "set_mkldnn",
    "set_precision",
    "tracing_state",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "versions_kept",
    "without_dispatch_modes",
    "without_torch_function",
]

_C: Any = torch._C

# What kind of tensor this is.
has_storage = _C._has_storage
is_functional = torch._is_functional_tensor
is_functorch_wrapped = _C._functorch.is_functorch_wrapped_tensor

# What is going on in this thread.
tracing_state = _C._get_tracing_state
current_graph_task = _C._current_graph_task_id
current_autograd_node = _C._current_autograd_node
autograd_sequence: Any = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
num_dispatch_modes = _C._len_torch_dispatch_stack
num_function_modes = _C._len_torch_function_stack
innermost_transform = _C._functorch.peek_interpreter_stack
"""The vmap, grad or other transform of functions that is under way; None where there is none."""


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Within the block no vmap, grad or other transform of functions applies: for work of ours in a forward pass that
    is called inside one."""
    if innermost_transform() is None:
        yield
        return
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack():
        yield


without_torch_function = _C.DisableTorchFunction
set_grad_enabled = _C._set_grad_enabled
OpOverload = torch._ops.OpOverload
free_cublas_workspaces: Any = getattr(_C, "_cuda_clearCublasWorkspaces", None)
"""They are made again where they are needed; None where torch was built without CUDA."""
versions_kept: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
"""Hides from autograd that a tuple of tensors was written to: for those that get their bits back."""

# Process-wide switches.
get_mkldnn, set_mkldnn = _C._get_mkldnn_enabled, _C._set_mkldnn_enabled
get_precision, set_precision = _C._get_fp32_precision_getter, _C._set_fp32_precision_setter
"""How float32 products are computed, for each backend and kind of operation."""


def reduced_sums_of(kind: str) -> Any:
    """What reads whether sums of a product of this type ("fp16", "bf16") may be kept in that type."""
    return getattr(_C, f"_get_cublas_allow_{kind}_reduced_precision_reduction")


def get_deterministic() -> tuple[bool, bool]:
    """Whether deterministic algorithms are asked for, and whether only a warning is wanted."""
    return _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()


def set_deterministic(value: tuple[bool, bool]) -> None:
    """What `get_deterministic` reads."""
    _C._set_deterministic_algorithms(value[0], warn_only=value[1])


fill_memory_of = (
    _C._get_deterministic_fill_uninitialized_memory,
    _C._set_deterministic_fill_uninitialized_memory,
)
"""Read and write whether new memory is filled where deterministic algorithms are asked for."""


def dynamo_is_loaded() -> bool:
    """Whether anything can be compiled. Loading the compiler takes seconds, so it is never loaded to ask."""
    return "torch._dynamo" in sys.modules


def dynamo_counters() -> Any:
    """What the compiler has counted; only where it is loaded."""
    from torch._dynamo.utils import counters

    return counters
