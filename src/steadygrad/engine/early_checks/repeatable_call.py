"""Whether a model may be called once more without anyone noticing.

Weights, buffers, attributes, modes and random numbers can be restored after a call. What a forward prints, counts in a
global variable or hands to a hook of the program cannot. The code of the program that a forward can reach is read, as
far as names lead; where it uses anything that is not known to be harmless, the model is not called again.
"""

from __future__ import annotations

import dis
import sysconfig
from collections.abc import Iterator
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ...detect.tensors.foreign_objects import getattr, isinstance
from ...detect.tensors.torch_private import num_dispatch_modes, num_function_modes
from .held_state import HeldState

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))
_SPEAKS = frozenset(
    {"print", "open", "input", "exec", "eval", "next", "write", "writelines", "info", "warn", "warning", "debug"}
    | {"error", "add_scalar", "add_histogram", "all_reduce", "all_gather", "broadcast", "send", "put", "save"}
)
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_HARMLESS = frozenset(
    {"torch", "torchvision", "torchaudio", "transformers", "peft", "timm", "einops", "numpy", "scipy", "math", "random"}
    | {"functools", "itertools", "operator", "typing", "collections", "contextlib", "dataclasses", "copy", "builtins"}
    | {"jaxtyping", "abc", "enum", "__future__"}
)
"""Libraries whose functions leave nothing behind but random numbers, which are restored."""
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.device, torch.Size)
_MAX_FUNCTIONS = 500


def why_not_repeat(model: nn.Module, held: HeldState) -> str | None:
    """Why this model must not be called again, as a clause; None where it may."""
    if num_dispatch_modes() or num_function_modes():
        return "every operation is traced by the program"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "it may exchange values with other processes"
    if held.unknown is not None:
        return f"it holds {held.unknown}"
    for name, part in model.named_modules():
        hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
        if any(not type(hook).__module__.startswith("steadygrad.") and not _is_ours(hook) for hook in hooks):
            return f"the program has a hook on {name or 'the model'}"
        if "forward" in vars(part) or not isinstance(type(part).forward, FunctionType):
            return f"the forward of {name or 'the model'} was replaced"
    kinds = {type(part) for part in model.modules()} | {type(each) for each in held.objects}
    return _ReachedCode(kinds, held.functions).effect()


def why_not_call_again(function: Any, model: nn.Module, held: HeldState) -> str | None:
    """The same for a function of the program that calls the model: why calling it again could be noticed."""
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    if owner is not None and not any(owner is part for part in model.modules()):
        return f"it belongs to an object of type {type(owner).__name__}"
    if not isinstance(getattr(function, "__func__", function), FunctionType):
        return f"it is of type {type(function).__name__}"
    if reason := why_not_repeat(model, held):
        return reason
    kinds = {type(part) for part in model.modules()} | {type(each) for each in held.objects}
    return _ReachedCode(kinds, [*held.functions, getattr(function, "__func__", function)]).effect()


def _is_ours(hook: Any) -> bool:
    """Whether a bound method of ours is the hook."""
    return type(getattr(hook, "__self__", None)).__module__.startswith("steadygrad.")


class _ReachedCode:
    """The program's own functions that calls of these classes can reach."""

    def __init__(self, kinds: set[type], functions: list[FunctionType]) -> None:
        self._methods: dict[str, list[FunctionType]] = {}
        self._kept_by_classes: dict[str, Any] = {}
        self._known: set[type] = set()
        self._waiting: list[FunctionType] = []
        self._reached: set[CodeType] = set()
        for kind in kinds:
            self._add_class(kind)
        for function in functions:
            self._add(function)
        for kind in kinds:
            for name in ("forward", "__call__"):
                self._add(getattr(kind, name, None))

    def _add_class(self, kind: type) -> None:
        """The methods of a class of the program, by name, and what the class keeps for all of its objects."""
        for base in kind.__mro__:
            if base in self._known or _root(base.__module__) in _HARMLESS:
                continue
            self._known.add(base)
            for name, value in vars(base).items():
                found = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if isinstance(found, FunctionType):
                    self._methods.setdefault(name, []).append(found)
                elif not name.startswith("__"):
                    self._kept_by_classes[name] = value

    def _add(self, function: Any) -> None:
        if isinstance(function, MethodType):
            function = function.__func__
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, FunctionType) or function.__code__ in self._reached:
            return
        if function.__code__.co_filename.startswith(_LIBRARIES) and _root(function.__module__) in _HARMLESS:
            return
        self._reached.add(function.__code__)
        self._waiting.append(function)

    def effect(self) -> str | None:
        """What one of the functions may leave behind, as a clause."""
        while self._waiting:
            function = self._waiting.pop()
            if len(self._reached) > _MAX_FUNCTIONS:
                return "its forward reaches very many functions"
            used = [function.__globals__.get, _cells(function).get]
            for code in _codes(function.__code__):
                if reason := self._of_code(code, used):
                    return f"{function.__qualname__} {reason}"
        return None

    def _of_code(self, code: CodeType, used: list[Any]) -> str | None:
        for instruction in dis.get_instructions(code):
            name, operation = instruction.argval, instruction.opname
            if operation in _STORES or (operation == "STORE_DEREF" and name in code.co_freevars):
                return f"sets {name}, a variable outside of it"
            if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
                value = next((found for get in used if (found := get(name)) is not None), None)
                if name in _SPEAKS or not self._is_harmless(value):
                    return f"uses {name}"
            elif operation == "IMPORT_NAME" and _root(str(name)) not in _HARMLESS:
                return f"imports {name}"
            elif operation in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "LOAD_SUPER_ATTR"):
                writes = operation == "STORE_ATTR" and name in self._kept_by_classes
                if name in _SPEAKS or writes or not self._is_harmless(self._kept_by_classes.get(name)):
                    return f"uses {name}"
                for method in self._methods.get(name, ()):
                    self._add(method)
        return None

    def _is_harmless(self, value: Any) -> bool:
        """Whether a global of the program is a constant, or code that can be read."""
        if isinstance(value, (*_CONSTANTS, BuiltinFunctionType)):
            return True
        if isinstance(value, ModuleType):
            return _root(value.__name__) in _HARMLESS
        if isinstance(value, type):
            self._add_class(value)
            for base in value.__mro__:
                for name in ("__init__", "__new__", "forward", "backward", "__call__", "__post_init__"):
                    self._add(getattr(vars(base).get(name), "__func__", vars(base).get(name)))
            return True
        if isinstance(value, tuple | frozenset):
            return all(self._is_harmless(item) for item in value)
        if callable(value) and isinstance(getattr(value, "__wrapped__", value), FunctionType):
            self._add(value)
            return True
        of_torch = _root(type(value).__module__) in ("torch", "typing")
        return of_torch and callable(value) and not isinstance(value, nn.Module)


def _root(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _cells(function: FunctionType) -> dict[str, Any]:
    """The variables of an outer function that this one uses, as far as they are set."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
