"""Traits of a live model that known bugs need to show: names, flags and code are looked at, no tensor is read."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .inputs.script_traits import variances_by_difference

_BOUNDS = {"clamp", "clip", "clamp_", "minimum"}


def versions() -> dict[str, str]:
    """The versions of the libraries that are loaded and have known bugs."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in ("torch", "transformers")}
    return {name: str(version) for name, version in loaded.items() if version is not None}


def live_traits(
    model: nn.Module, optimizers: Sequence[Optimizer], *, scaler: Any, precision: str, guarded: bool
) -> frozenset[str]:
    """Every trait that this model has as it is about to be trained."""
    devices = {p.device for p in model.parameters()}
    on_cuda = [device for device in devices if device.type == "cuda"]
    groups = [(each, group) for each in optimizers for group in each.param_groups]
    half = precision in ("fp16", "bf16") or any(p.dtype.itemsize == 2 for p in model.parameters() if p.requires_grad)
    sgd = (group for each, group in groups if isinstance(each, torch.optim.SGD) and group.get("fused"))
    found = {
        "cuda": bool(on_cuda),
        "hopper": any(torch.cuda.get_device_capability(device)[0] == 9 for device in on_cuda),
        "half": half,
        "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        "unguarded": not guarded,
        "scaler": scaler is not None or precision == "fp16",
        "fused": any(group.get("fused") for _, group in groups),
        "fused_sgd_momentum": any(group.get("momentum") for group in sgd),
        "several_devices": len(devices) > 1,
    }
    return frozenset({name for name, there in found.items() if there} | set(_in_code(model)))


def _in_code(model: nn.Module) -> Iterator[str]:
    """Traits of the code that the modules of this model are made of, each class once."""
    modules = list(model.modules())
    compiled = [m for m in modules if getattr(m, "_compiled_call_impl", None) is not None or _is_optimized(m)]
    if compiled:
        yield "compiled"
        inside = {type(each) for module in compiled for each in module.modules()}
        if any(_has_difference(kind) for kind in inside):
            yield "variance_by_difference"
    if any(isinstance(m, nn.MultiheadAttention | nn.TransformerEncoderLayer) for m in modules) or any(
        getattr(getattr(m, "config", None), "_attn_implementation", None) == "sdpa" for m in modules
    ):
        yield "masked_attention"
    for code in (code for kind in {type(module) for module in modules} for code in _codes(kind)):
        names = set(code.co_names)
        words = {*code.co_varnames, *(w for c in code.co_consts if isinstance(c, tuple) for w in c)}
        if "scaled_dot_product_attention" in names and any("mask" in str(word) for word in words):
            yield "masked_attention"
        if "float8_e4m3fn" in names and not names & _BOUNDS:
            yield "float8_cast"
        if "flex_attention" in names and {"score_mod", "block_mask"} <= words:
            yield "flex_attention_both"


def _is_optimized(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule"


def _codes(kind: type) -> Iterator[CodeType]:
    """The code of a module's methods, not of those that it overrides; torch's modules are known."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith("torch.")]
    methods = {name: value for base in reversed(own) for name, value in vars(base).items()}
    yield from (value.__code__ for value in methods.values() if isinstance(getattr(value, "__code__", None), CodeType))


def _has_difference(kind: type) -> bool:
    if kind.__module__.startswith("torch."):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    return any(True for _ in variances_by_difference(tree))
