"""What a loop calls the parts of a batch of its loader, read off its `for` or its `next(...)`, and bound to a batch."""

from __future__ import annotations

import ast
from typing import Any

from ...detect.tensors.foreign_objects import isinstance


def batch_names_of(loop: ast.For) -> tuple[Any, ...]:
    """`x, y` of `for x, y in loader` and of `for i, (x, y) in enumerate(tqdm(loader))`, as nested names."""
    target = loop.target
    counted = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "enumerate"
        for node in ast.walk(loop.iter)
    )
    if counted and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    return nested_names(target)


def drawn_names(body: list[ast.stmt], line: int) -> tuple[Any, ...]:
    """`x, y` of a line `x, y = next(batches)` before this line."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and is_next(node.value) and node.lineno < line:
                return nested_names(node.targets[0])
    return ()


def is_next(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "next"


def nested_names(target: ast.expr) -> tuple[Any, ...]:
    """The names of a target in the shape in which they unpack; () where something else than names is assigned to."""
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Tuple | ast.List):
        parts = [nested_names(part) for part in target.elts]
        return (tuple(part[0] if len(part) == 1 and isinstance(part[0], str) else part for part in parts), "unpacked") \
            if all(parts) else ()  # fmt: skip
    return ()


def flat_names(names: Any) -> list[str]:
    if isinstance(names, str):
        return [] if names == "unpacked" else [names]
    return [name for part in names for name in flat_names(part)]


def bind_batch(names: tuple[Any, ...], batch: Any) -> dict[str, Any] | None:
    """What each name of the loop's target is for this batch of its loader; None where the shapes differ."""
    if len(names) == 1 and isinstance(names[0], str):
        return {names[0]: batch}
    if len(names) == 2 and names[1] == "unpacked" and isinstance(batch, list | tuple) and len(names[0]) == len(batch):
        bound: dict[str, Any] = {}
        for part, value in zip(names[0], batch, strict=True):
            inner = bind_batch((part,) if isinstance(part, str) else part, value)
            if inner is None:
                return None
            bound |= inner
        return bound
    return None
