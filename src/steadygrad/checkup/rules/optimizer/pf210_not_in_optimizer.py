"""A trainable parameter is in no optimizer.

What it sees
    A script that replaces a layer, wraps the model in adapters or resizes its embedding after the optimizer was made
    from it; or live trainable parameters that no optimizer holds.

Why it hurts
    The optimizer keeps the old tensors. The new layer gets gradients and never moves, and nothing says so.

Smallest example
    optimizer = AdamW(model.parameters()); model.head = nn.Linear(64, 10)
    # fixed
    model.head = nn.Linear(64, 10); optimizer = AdamW(model.parameters())

What to do
    Make the optimizer last, or add the new parameters with `add_param_group`. Freeze what shall not learn.

Safety
    A note where no step of the optimizer is seen to follow. Live, parameters of a second optimizer that was not handed
    over look the same: hand over both.

References
    https://github.com/microsoft/nni/issues/4521
    https://github.com/pytorch/pytorch/issues/14467
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at, listed
from ...inputs.facts import GroupFacts, ParameterFacts, Setup
from ...inputs.loop_calls import kind_of
from ...inputs.script import Script, last_word
from ...inputs.script_models import optimizer_calls

RULE = Rule("PF210", "not_in_optimizer", "A trainable parameter is in no optimizer.")
WITHOUT_PARAMETERS = re.compile(
    r"Loss$|Dropout|Pool\dd$|Pad\dd$|(?<!P)ReLU6?$|[GSC]?ELU$|SiLU$|Mish$|Soft\w+$|LogSoftmax$|Sigmoid$|Tanh$|Identity$"
    r"|latten$|Upsample|PixelShuffle$|Fold$|Similarity$|PairwiseDistance$|DataParallel$"
)
CHANGES = {"get_peft_model", "resize_token_embeddings", "add_module", "register_parameter"}


def of_script(script: Script) -> Iterator[Advice]:
    """Both must stand straight in one function, outside loops and branches, so that their order is certain."""
    for call in optimizer_calls(script):
        names = {
            ast.unparse(node.func.value)
            for node in ast.walk(call)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parameters"
        }
        body = getattr(script.scope(call), "body", [])
        if not names or not isinstance(body, list):
            continue
        place = next((number for number, each in enumerate(body) if call in ast.walk(each)), None)
        after = body[place + 1 :] if place is not None else []
        if any(_makes_optimizer(script, statement) for statement in after):
            continue  # which of them trains the changed model cannot be told
        for number, statement in enumerate(after):
            if _steps(statement):
                break  # the optimizer has done its work
            level = Level.ERROR if any(_steps(each) for each in after[number:]) else Level.NOTE
            for name in names:
                if change := _change(script, statement, name):
                    yield at(
                        RULE, level, script, statement, f"{change} after the optimizer was made from {name}",
                        help="make the optimizer after the model is final",
                    )  # fmt: skip


def _makes_optimizer(script: Script, statement: ast.AST) -> bool:
    return any(call in ast.walk(statement) for call in optimizer_calls(script))


def _steps(statement: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) and kind_of(node) in ("step", "scaler_step") for node in ast.walk(statement))


def _change(script: Script, statement: ast.AST, name: str) -> str:
    """What a statement does to the parameters of `name`; "" for nothing."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
        owner = ast.unparse(statement.targets[0].value)
        value = statement.value
        made = isinstance(value, ast.Call) and _has_parameters(script.dotted(value.func))
        if (owner == name or owner.startswith(name + ".")) and made:
            return f"{ast.unparse(statement.targets[0])} is replaced"
    if isinstance(statement, ast.Assign | ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        word = last_word(call.func)
        given = [ast.unparse(argument) for argument in call.args[:1]]
        owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if word in CHANGES and name in (*given, owner):
            return f"{word} changes its parameters"
    return ""


def _has_parameters(name: str) -> bool:
    """A layer of torch that learns: a loss, an activation, a dropout or a pool has nothing to put into an optimizer."""
    return name.startswith("torch.nn.") and not WITHOUT_PARAMETERS.search(name)


def of_setup(setup: Setup) -> Iterator[Advice]:
    """Silent while there is no optimizer to judge."""
    orphans = [p for p in setup.trainable if not p.in_optimizer]
    if setup.groups and orphans:
        yield about(
            RULE, Level.WARNING, listed([p.name for p in orphans]),
            f"{len(orphans)} trainable tensors are in no optimizer",
            help="make the optimizer after the model is final, or freeze them", num_tensors=len(orphans),
        )  # fmt: skip


SPECIMENS = [
    """
import torch
from torch import nn
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model.head = nn.Linear(64, 10)
""",
    """
import torch
def main(model, tokenizer):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.resize_token_embeddings(len(tokenizer))
""",
    Setup(parameters=(ParameterFacts(name="head", in_optimizer=False),), groups=(GroupFacts(),)),
]
WARNINGS = [
    """
import torch
from torch import nn
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model.head = nn.Linear(64, 10)
for x in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
""",
]
ONLY_NOTES = SPECIMENS[:2]
NEAR_MISSES = [
    """
import torch
from torch import nn
class Agent(nn.Module):
    def __init__(self):
        self.layer = nn.Linear(4, 2)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        self.criterion = nn.MSELoss()
        self.drop = nn.Dropout(0.1)
""",
    """
import torch
from peft import get_peft_model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for x in loader:
    optimizer.zero_grad()
    model(x).backward()
    optimizer.step()
model = get_peft_model(model, config)
""",
    """
import torch
from torch import nn
model.head = nn.Linear(64, 10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model.config.use_cache = False
""",
    """
import torch
from torch import nn
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
other.head = nn.Linear(64, 10)
""",
    Setup(
        parameters=(ParameterFacts(name="head"), ParameterFacts(name="base", trainable=False, in_optimizer=False)),
        groups=(GroupFacts(),),
    ),
]
