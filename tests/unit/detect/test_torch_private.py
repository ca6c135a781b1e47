"""What is private of torch stands in one module, and does in this version what its users count on.

A failure here names the torch version that changed it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import steadygrad
from steadygrad.detect.tensors import torch_private as private

HERE = f"torch {torch.__version__}"
SOURCE = Path(steadygrad.__file__).parent
# `torch._foreach_*` is what every optimizer of torch is made of; the names in a pickle are data, not calls.
PRIVATE = re.compile(r"torch\._(?!foreach_|_)\w|from torch[\w.]*\._\w|torch\.autograd\._(?!_)\w")
ALLOWED = {"detect/tensors/torch_private.py"}
AS_TEXT = re.compile(r"[\"']torch\._\w[\w.]*[\"']")


def test_nothing_else_uses_what_is_private_of_torch() -> None:
    found = []
    for path in SOURCE.rglob("*.py"):
        if str(path.relative_to(SOURCE)) in ALLOWED:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if PRIVATE.search(AS_TEXT.sub("", line)):
                found.append(f"{path.relative_to(SOURCE)}:{number}: {line.strip()}")
    assert found == []


def test_tensors_are_told_apart() -> None:
    assert private.has_storage(torch.zeros(1)), HERE
    assert not private.is_functional(torch.zeros(1)), HERE
    seen: list[bool] = []
    torch.func.vmap(lambda x: seen.append(private.is_functorch_wrapped(x)) or x)(torch.zeros(2))
    assert seen == [True], HERE


def test_a_backward_has_a_number_and_a_node() -> None:
    tasks: list[int] = []
    nodes: list[Any] = []
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    before = private.autograd_sequence()
    y.register_hook(lambda g: (tasks.append(private.current_graph_task()), None)[1])
    y.grad_fn.register_prehook(lambda g: (nodes.append(private.current_autograd_node()), None)[1])  # type: ignore[union-attr]
    y.sum().backward()
    assert private.current_graph_task() == -1, HERE
    assert tasks[0] >= 0, HERE
    assert nodes[0] is not None, HERE
    x.exp()
    assert private.autograd_sequence() > before, HERE


def test_a_tensor_that_got_its_bits_back_can_be_kept_at_its_version() -> None:
    weight, x = torch.ones(2, requires_grad=True), torch.ones(2)
    made = (weight * x).square().sum()
    with private.versions_kept((x,)):
        x.mul_(2).div_(2)
    assert x._version == 0, HERE
    made.backward()
    assert weight.grad is not None


def test_modes_are_counted() -> None:
    class Counts(private.TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counts.calls += 1
            assert isinstance(func, private.OpOverload), HERE
            return func(*args, **(kwargs or {}))

    base = private.num_dispatch_modes()
    with Counts():
        assert private.num_dispatch_modes() == base + 1, HERE
        torch.ones(1) + 1
        seen = Counts.calls
        with private.without_dispatch_modes():
            torch.ones(1) + 1
    assert seen >= 1, HERE
    assert Counts.calls == seen, HERE
    assert isinstance(private.num_function_modes(), int), HERE


def test_a_subclass_is_passed_by_without_torch_function() -> None:
    calls: list[str] = []

    class Speaks(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(1).as_subclass(Speaks)
    with private.without_torch_function():
        x + 1
    assert calls == [], HERE
    x + 1
    assert calls, HERE


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*")
def test_tracing_shows() -> None:
    states: list[bool] = []

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states.append(private.tracing_state() is not None)
            return x + 1

    assert private.tracing_state() is None, HERE
    torch.jit.trace(Model(), torch.zeros(1), check_trace=False)
    assert states[-1], HERE


def test_switches_read_what_was_written() -> None:
    kept = private.get_deterministic()
    try:
        private.set_deterministic((True, True))
        assert private.get_deterministic() == (True, True), HERE
    finally:
        private.set_deterministic(kept)
    read, write = private.fill_memory_of
    before = read()
    write(not before)
    assert read() is not before, HERE
    write(before)
    assert isinstance(private.get_mkldnn(), bool), HERE
    for kind in ("fp16", "bf16"):
        assert private.reduced_sums_of(kind)() is not None, HERE
    assert private.get_precision("generic", "all") in ("none", "ieee", "tf32", "bf16"), HERE


def test_gradients_are_grouped_and_trees_are_walked() -> None:
    groups = private.group_by_device_and_dtype([[torch.zeros(1), torch.zeros(1, dtype=torch.float64)]])
    assert len(groups) == 2, HERE
    leaves, spec = private.tree_flatten({"a": [1, 2]})
    assert leaves == private.tree_leaves({"a": [1, 2]}) == [1, 2], HERE
    assert spec.unflatten(leaves) == {"a": [1, 2]}, HERE
    assert private.tree_map(lambda value: value + 1, (1, 2)) == (2, 3), HERE
    assert dict in private.SUPPORTED_NODES, HERE


def test_the_compiler_is_not_loaded_to_ask_for_it() -> None:
    import subprocess
    import sys

    code = "import steadygrad.detect.tensors.torch_private as p; print(p.dynamo_is_loaded())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False", HERE
