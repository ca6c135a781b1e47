"""Traits of a script that known bugs need to show: words, each with the place that has it. Imports no torch."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator

from .script import Script, last_word

_FUSED = {"SGD", "Adam", "AdamW", "Adagrad"}
_BOUNDS = {"clamp", "clip", "clamp_", "minimum", "saturate"}
_MEANS = {"mean", "sum"}


@functools.lru_cache(1)  # every known bug asks for them
def traits_of_script(script: Script) -> dict[str, ast.AST]:
    """Every trait that this script has, with the first place that shows it."""
    found = ((name, next(find(script), None)) for name, find in _TRAITS.items())
    return {name: place for name, place in found if place is not None}


def variances_by_difference(tree: ast.AST) -> Iterator[ast.BinOp]:
    """`(x * x).mean() - m * m`: a mean of squares less a square."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and _is_square(node.right):
            call = node.left
            averages = isinstance(call, ast.Call) and last_word(call.func) in _MEANS
            if averages and any(_is_square(inner) for inner in ast.walk(call)):
                yield node


def _is_square(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return ast.dump(left) == ast.dump(right)
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=2)):
            return True
        case ast.Call(func=ast.Attribute(attr="pow"), args=[*_, ast.Constant(value=2)]):
            return True
        case ast.Call(func=ast.Attribute(attr="square")):
            return True
    return False


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _calls(script: Script, *names: str) -> Iterator[ast.Call]:
    return (call for call in script.calls if last_word(call.func) in names)


def _cuda(script: Script) -> Iterator[ast.AST]:
    yield from (n for n in script.nodes if isinstance(n, ast.Constant) and str(n.value).startswith("cuda"))
    yield from _calls(script, "cuda")


def _half(script: Script) -> Iterator[ast.AST]:
    words = {"bfloat16", "float16", "half", "bf16", "fp16"}
    yield from (n for n in script.nodes if isinstance(n, ast.Attribute) and n.attr in words)
    yield from (k for call in script.calls for k in call.keywords if k.arg in words and _is_true(k.value))


def _is_true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _cudnn_attention(script: Script) -> Iterator[ast.AST]:
    off = [call for call in _calls(script, "enable_cudnn_sdp") if call.args and not _is_true(call.args[0])]
    if not off and not any(True for _ in _calls(script, "sdpa_kernel")):
        yield script.tree


def _masked_attention(script: Script) -> Iterator[ast.AST]:
    for call in _calls(script, "scaled_dot_product_attention"):
        mask = call.args[3] if len(call.args) > 3 else _keyword(call, "attn_mask")
        if mask is not None and not (isinstance(mask, ast.Constant) and mask.value is None):
            yield call


def _scaler(script: Script) -> Iterator[ast.AST]:
    for call in _calls(script, "GradScaler"):
        enabled = _keyword(call, "enabled")
        if not (isinstance(enabled, ast.Constant) and enabled.value is False):
            yield call


def _fused(script: Script) -> Iterator[ast.Call]:
    return (call for call in _calls(script, *_FUSED) if _is_true(_keyword(call, "fused")))


def _fused_sgd_momentum(script: Script) -> Iterator[ast.AST]:
    for call in _fused(script):
        momentum = _keyword(call, "momentum")
        zero = isinstance(momentum, ast.Constant) and not momentum.value
        if last_word(call.func) == "SGD" and momentum is not None and not zero:
            yield call


def _several_devices(script: Script) -> Iterator[ast.AST]:
    named = [n for n in script.nodes if isinstance(n, ast.Constant) and str(n.value).startswith("cuda:")]
    if len({node.value for node in named}) > 1:
        yield named[0]


def _compiled(script: Script) -> Iterator[ast.AST]:
    for call in _calls(script, "compile"):
        if script.dotted(call.func) == "torch.compile" or (isinstance(call.func, ast.Attribute) and not call.args):
            yield call


def _float8_cast(script: Script) -> Iterator[ast.AST]:
    for call in _calls(script, "to"):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not any(last_word(each) == "float8_e4m3fn" for each in given) or script.untracked(call):
            continue
        scope = script.parents.get(call)
        while scope is not None and not isinstance(scope, ast.FunctionDef | ast.Module):
            scope = script.parents.get(scope)
        inside = {last_word(n.func) for n in ast.walk(scope or call) if isinstance(n, ast.Call)}
        if not inside & _BOUNDS:
            yield call


def _flex_attention_both(script: Script) -> Iterator[ast.AST]:
    for call in _calls(script, "flex_attention"):
        if _keyword(call, "score_mod") is not None and _keyword(call, "block_mask") is not None:
            yield call


def _trainer_accumulates(script: Script) -> Iterator[ast.AST]:
    for call in script.calls:
        steps = _keyword(call, "gradient_accumulation_steps")
        many = isinstance(steps, ast.Constant) and isinstance(steps.value, int) and steps.value > 1
        if last_word(call.func) == "TrainingArguments" and many:
            yield call


_TRAITS: dict[str, Callable[[Script], Iterator[ast.AST]]] = {
    "cuda": _cuda,
    "half": _half,
    "cudnn_attention": _cudnn_attention,
    "masked_attention": _masked_attention,
    "scaler": _scaler,
    "fused": _fused,
    "fused_sgd_momentum": _fused_sgd_momentum,
    "several_devices": _several_devices,
    "compiled": _compiled,
    "variance_by_difference": lambda script: variances_by_difference(script.tree),
    "float8_cast": _float8_cast,
    "flex_attention_both": _flex_attention_both,
    "trainer_accumulates": _trainer_accumulates,
}
