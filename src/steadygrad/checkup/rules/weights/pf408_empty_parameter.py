"""A parameter is made of uninitialised memory.

What it sees
    `nn.Parameter(torch.empty(...))` or `nn.Parameter(torch.Tensor(...))` in a class where nothing writes to it.

Why it hurts
    The memory holds whatever was there: mostly zeros in a fresh process, and NaN or 1e30 in the run that matters.

Smallest example
    self.scale = nn.Parameter(torch.empty(64))
    # fixed
    self.scale = nn.Parameter(torch.ones(64))

What to do
    `nn.init.normal_(self.scale, std=0.02)`, or make it of zeros, ones or randn.

Safety
    A note: a base class, another file or a checkpoint may fill it. Any later mention in an initialising call or method
    counts; classes that a library initialises are not reported.

References
    https://github.com/openai/CLIP/issues/15
    https://github.com/gordicaleksa/pytorch-GAT/issues/11
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import at
from ...inputs.loss_expressions import names_in
from ...inputs.script import Script, keyword

RULE = Rule("PF408", "empty_parameter", "A parameter is made of uninitialised memory.")
WRITES = re.compile(
    r"init|reset|uniform_|normal_|zero_|fill_|copy_|constant_|ones_|xavier|kaiming|load|\.data\b|weight_loader"
)


INITIALISES = re.compile(r"_?(init|reset|initialize)_?(weights|parameters|params)?$")


def of_script(script: Script) -> Iterator[Advice]:
    """One finding a parameter."""
    for node in script.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
            continue
        name = node.targets[0].attr
        if not _is_empty_parameter(script, node.value):
            continue
        home = next((each for each in script.above(node) if isinstance(each, ast.ClassDef)), None)
        if home is not None and not _is_written(script, home, node, name):
            yield at(
                RULE, Level.NOTE, script, node, f"{name} holds whatever the memory held, and nothing writes to it",
                help=f"torch.nn.init.normal_(self.{name}, std=0.02), or torch.zeros", subject=name,
            )  # fmt: skip


def _is_empty_parameter(script: Script, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call) or not script.dotted(value.func).endswith("nn.Parameter") or not value.args:
        return False
    if script.literal(keyword(value, "requires_grad")) is False:
        return False  # not trained: what a checkpoint fills, such as quantised weights
    inner = value.args[0]
    if not isinstance(inner, ast.Call):
        return False
    name = script.dotted(inner.func)
    sized = bool(inner.args) and not isinstance(inner.args[0], ast.List)
    return name == "torch.empty" or (name in ("torch.Tensor", "torch.FloatTensor") and sized)


def _is_written(script: Script, home: ast.ClassDef, made: ast.AST, name: str) -> bool:
    """Whether anything in the class names it while writing, or writes to all parameters alike."""
    library = any(re.search(r"PreTrained|Quant|Linear|Embedding|Conv|Norm", ast.unparse(base)) for base in home.bases)
    if library:
        return True
    for node in ast.walk(home):
        if isinstance(node, ast.Call) and node not in ast.walk(made):
            text = ast.unparse(node)
            if WRITES.search(text) and (name in text or "parameters()" in text):
                return True
        if isinstance(node, ast.For) and ("parameters()" in ast.unparse(node.iter) or name in ast.unparse(node.iter)):
            return True
    if any(_lists(node, name) for node in ast.walk(home)):
        return True
    for node in script.nodes:
        if isinstance(node, ast.Assign) and node is not made and _gives(script, node, name):
            return True
        if isinstance(node, ast.FunctionDef) and INITIALISES.match(node.name) and name in names_in(node):
            return True
        if isinstance(node, ast.Call) and WRITES.search(ast.unparse(node.func)) and name in names_in(node):
            return node not in ast.walk(made)
    return False


def _lists(node: ast.AST, name: str) -> bool:
    """`[self.U, self.V]`: what is put into a list is written to through it."""
    parts = node.elts if isinstance(node, ast.List | ast.Tuple) and isinstance(node.ctx, ast.Load) else []
    return any(isinstance(part, ast.Attribute) and part.attr == name for part in parts)


def _gives(script: Script, node: ast.Assign, name: str) -> bool:
    """Whether an assignment gives the attribute a value that is no empty memory and not None."""
    target, value = node.targets[0], node.value
    named = isinstance(target, ast.Attribute) and target.attr == name
    return named and not _is_empty_parameter(script, value) and script.literal(value) is not None


SPECIMENS = [
    """
import torch
from torch import nn
class Light(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.Tensor(n).uniform_(0, 1))
        self.bias = nn.Parameter(torch.Tensor(n))
""",
    """
import torch
from torch import nn
class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(n))
    def forward(self, x):
        return x * self.scale
""",
]
ONLY_NOTES = SPECIMENS
NEAR_MISSES = [
    """
import torch
from torch import nn
class Cross(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.first = nn.Parameter(torch.Tensor(n, n, n))
        self.second = nn.Parameter(torch.Tensor(n, n, n))
        drawn = [self.first, self.second]
        for each in drawn:
            nn.init.xavier_normal_(each[0])
""",
    """
import torch
from torch import nn
class Speaker(nn.Module):
    def __init__(self, n):
        super().__init__()
        if n is not None:
            self.known = nn.Parameter(torch.empty(n))
        else:
            self.known = None
    def overwrite(self, known):
        self.known = nn.Parameter(known)
""",
    """
import torch
from torch import nn
class Packed(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.codes = nn.Parameter(torch.empty(n, dtype=torch.uint8), requires_grad=False)
""",
    """
import torch
from torch import nn
class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(n))
        nn.init.ones_(self.scale)
""",
    """
import torch
from torch import nn
class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(n))
        self.reset_parameters()
    def reset_parameters(self):
        for p in self.parameters():
            p.data.uniform_(-1, 1)
""",
    """
import torch
from torch import nn
class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(n))
""",
]
