"""A hand-written training loop as the order in which its calls stand: backward, unscale, clip, step, zero_grad.

Only calls of one function are ordered against each other. A call in another function may run before or after, so a
rule about order says nothing across functions, and a rule about something missing looks at the whole file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .script import FUNCTIONS, Script, keyword, last_word

OPTIMIZER = re.compile(r"opt(im)?(izer)?s?(?![a-z])|optim|solver", re.IGNORECASE)
SCHEDULER = re.compile(r"sched|option|loader", re.IGNORECASE)
SCALER = re.compile(r"scaler", re.IGNORECASE)
CLIPS = {"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_gradients"}
FRAMEWORKS = ("accelerate", "deepspeed", "colossalai", "lightning.fabric", "apex", "fairscale", "megatron", "horovod")

MEASURES = {"perf_counter", "default_timer", "profile", "profiler", "Timer", "benchmark", "max_memory_allocated"}
"""Words of files that measure time or memory. `time.time()` alone is in many training loops."""


@dataclass(frozen=True, slots=True)
class LoopCall:
    """One call that matters to a training step, or the clearing of a gradient."""

    kind: str  # backward, zero_grad, step, scaler_step, unscale, clip, update
    node: ast.AST
    owner: str


def events(script: Script, scope: ast.AST) -> list[LoopCall]:
    """The events of one function in the order of the text; those of functions inside it are left out."""
    found = []
    for node in inside(scope):
        if isinstance(node, ast.Call):
            kind = kind_of(node)
            if kind:
                found.append(LoopCall(kind, node, owner_of(node)))
        elif isinstance(node, ast.Assign) and _forgets_gradient(node):
            found.append(LoopCall("zero_grad", node, ""))
    return sorted(found, key=lambda event: _place(event.node))


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0


def kind_of(call: ast.Call) -> str:
    """What a call does to a training step; "" for nothing."""
    word, owner = last_word(call.func), owner_of(call)
    match word:
        case "backward" if isinstance(call.func, ast.Attribute) and not call.args and "super" not in owner:
            return "backward"
        case "backward" if re.search(r"accelerator|fabric|engine|self", owner):
            return "backward"
        case "zero_grad":
            return "zero_grad"
        case "zero_" if owner.endswith((".grad", ".grad.data")):
            return "zero_grad"
        case "unscale_" | "unscale_gradients":
            return "unscale"
        case "step" if SCALER.search(owner) or (call.args and OPTIMIZER.search(ast.unparse(call.args[0]))):
            return "scaler_step"
        case "step" if OPTIMIZER.search(owner) and not SCHEDULER.search(owner):
            return "step"
        case "update" if SCALER.search(owner):
            return "update"
        case _:
            return "clip" if word in CLIPS else ""


def zeroes_gradient(node: ast.stmt) -> bool:
    """A statement that leaves gradients as zeros: an optimizer still steps with those, unlike with None."""
    if isinstance(node, ast.Assign):
        of_grad = any(ast.unparse(target).endswith((".grad", ".grad.data")) for target in node.targets)
        value = node.value
        return of_grad and isinstance(value, ast.Call) and last_word(value.func) in ("zeros_like", "zeros", "new_zeros")
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Mult) and ".grad" in ast.unparse(node.target) and _is_zero(node.value)
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    call = node.value
    match last_word(call.func):
        case "zero_":
            return owner_of(call).endswith((".grad", ".grad.data"))
        case "fill_" | "mul_":
            return owner_of(call).endswith((".grad", ".grad.data")) and any(_is_zero(each) for each in call.args)
        case "zero_grad":
            none = keyword(call, "set_to_none") or next(iter(call.args), None)
            return isinstance(none, ast.Constant) and none.value is False
        case _:
            return False


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)


def owner_of(call: ast.Call) -> str:
    """The text before the last dot: `self.optimizer` for `self.optimizer.step()`."""
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def is_scaled(call: ast.AST) -> bool:
    """`scaler.scale(loss).backward()`."""
    return isinstance(call, ast.Call) and "scale(" in owner_of(call)


def inside(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function or module but those of the functions and classes inside it."""
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, FUNCTIONS + (ast.ClassDef,)):
            stack.extend(ast.iter_child_nodes(node))


def loops(script: Script) -> list[list[LoopCall]]:
    """The events of every function, or of the module itself, that has both a backward and an optimizer step."""
    if "backward" not in script.called:
        return []
    scopes = [script.tree, *(node for node in script.nodes if isinstance(node, FUNCTIONS))]
    found = [events(script, scope) for scope in scopes]
    wanted = [each for each in found if "backward" in kinds(each) and kinds(each) & {"step", "scaler_step"}]
    return sorted(wanted, key=lambda each: _place(each[0].node))


def kinds(found: list[LoopCall]) -> set[str]:
    """Which kinds of events there are."""
    return {event.kind for event in found}


def has_scaler(script: Script) -> bool:
    """Whether anything in the file scales the loss."""
    return any("scaler" in word.lower() for word in script.words) or bool(
        script.words & {"scale_loss", "loss_scale", "unscale_", "loss_scaling"}
    )


def hands_over(script: Script) -> bool:
    """Whether a framework owns backward and step, so that what is missing here may well be done there."""
    return script.imports(*FRAMEWORKS) or any(
        word in script.words for word in ("Accelerator", "Fabric", "deepspeed", "manual_backward", "LightningModule")
    )


def innermost_loop(script: Script, node: ast.AST) -> ast.AST | None:
    """The `for` or `while` around a node, within its own function."""
    for each in script.above(node):
        if isinstance(each, FUNCTIONS):
            return None
        if isinstance(each, ast.For | ast.While | ast.AsyncFor):
            return each
    return None


def learns_from_data(script: Script, node: ast.AST) -> bool:
    """Whether a step stands in a loop over data, and not in one that counts, or in a file that measures or shows: what
    is trained there is thrown away."""
    loop = innermost_loop(script, node)
    counted = isinstance(loop, ast.For) and any(
        isinstance(each, ast.Call) and last_word(each.func) in ("range", "trange") for each in ast.walk(loop.iter)
    )
    return isinstance(loop, ast.For) and not counted and not script.words & MEASURES


def _forgets_gradient(node: ast.Assign) -> bool:
    of_grad = any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in node.targets)
    return of_grad and isinstance(node.value, ast.Constant) and node.value.value is None


def autocast_dtype(script: Script, call: ast.Call) -> str:
    """The dtype an autocast call names: float16, bfloat16, or "" if it cannot be told or is switched off."""
    name = script.dotted(call.func)
    if not name.endswith("autocast"):
        return ""
    if script.literal(keyword(call, "enabled")) is False:
        return ""
    device = script.literal(call.args[0] if call.args else keyword(call, "device_type"))
    given = keyword(call, "dtype") or (call.args[1] if len(call.args) > 1 else None)
    if given is not None:
        return str(script.literal(given)).rpartition(".")[2] if script.literal(given) is not None else ""
    if name == "torch.cuda.amp.autocast" or device == "cuda":
        return "float16"
    return ""
