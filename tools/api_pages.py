"""The pages of docs/api: signatures, docstrings and, for a policy, every number with its meaning."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
from collections.abc import Sequence
from typing import Any

import steadygrad as sg
from steadygrad import records
from steadygrad.engine.config import GuardConfig
from steadygrad.policy import PRESETS
from steadygrad.records import errors

PAGES: dict[str, tuple[str, str, Sequence[tuple[str, Any]]]] = {
    "guard": ("Guard", "The training step of a loop that is yours.", [
        ("sg.Guard", sg.Guard), ("Options of a Guard", GuardConfig), ("sg.GuardHandle", sg.GuardHandle),
    ]),
    "attach": ("attach", "A guard for a loop that stays as it is.", [
        ("sg.attach", sg.attach), ("sg.GradientMonitorCallback", sg.GradientMonitorCallback),
        ("sg.ActivationMonitorCallback", sg.ActivationMonitorCallback),
    ]),
    "policy": ("Policy", "Every number that judges and decides.", [("sg.Policy", sg.Policy)]),
    "outcome": ("Outcome", "What became of one step.", [("sg.Outcome", sg.Outcome), ("sg.Decision", sg.Decision)]),
    "incident": ("Incident", "Refused steps in a row.", [("sg.Incident", sg.Incident), ("sg.Finding", sg.Finding)]),
    "diagnosis": ("Diagnosis", "What a replay of the failing step found.", [
        ("sg.diagnose", sg.diagnose), ("sg.Diagnosis", sg.Diagnosis), ("Origin", records.Origin),
        ("Cause", records.Cause), ("Remedy", records.Remedy), ("Trial", records.Trial),
        ("TensorDigest", records.TensorDigest),
    ]),
    "checkup": ("doctor, probe, selftest", "Checks before training.", [
        ("sg.doctor", sg.doctor), ("sg.probe", sg.probe), ("sg.selftest", sg.selftest),
    ]),
    "numerics": ("numerics", "Stable parts that can be used alone; the [guide](../numerics.md) shows them at work.", [
        (f"sg.numerics.{name}", getattr(sg.numerics, name)) for name in sg.numerics.__all__
    ]),
    "testing": ("testing", "Faults on purpose; the [guide](../testing.md) shows them at work.", [
        (f"sg.testing.{name}", getattr(sg.testing, name))
        for name in sg.testing.__all__ if callable(getattr(sg.testing, name))
    ]),
    "errors": ("Errors", "Every exception that is raised on purpose.", [
        (f"sg.{name}" if name in sg.__all__ else f"steadygrad.records.errors.{name}", getattr(errors, name))
        for name in ("SteadyError", "UsageError", "TrainingHalted", "ClosedError", "RanksError", "JournalError",
                     "CapsuleError")
    ]),
}  # fmt: skip


def api_page(name: str) -> str:
    """One page of the reference."""
    title, summary, entries = PAGES[name]
    parts = [f"# {title}", summary]
    for shown, thing in entries:
        parts += [f"## `{shown}`" if "." in shown or shown.isidentifier() else f"## {shown}", _signature(shown, thing)]
        parts.append(_markdown(_doc(thing)))
        parts += _members(thing)
    if name == "policy":
        parts += ["## Every number", _numbers()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _doc(thing: Any) -> str:
    """The docstring, without the two options that only integrations set."""
    return re.sub(r"\n    (?:outside|precision_shown): [^\n]*", "", inspect.getdoc(thing) or "")


def _signature(shown: str, thing: Any) -> str:
    if thing is GuardConfig or shown[:2] != "sg" or (inspect.isclass(thing) and issubclass(thing, Exception)):
        return ""
    if dataclasses.is_dataclass(thing) or (isinstance(thing, type) and getattr(thing, "_is_protocol", False)):
        return ""
    text = str(inspect.signature(thing)).replace("'", "")
    return f"```text\n{shown}{text}\n```"


def _markdown(doc: str) -> str:
    """A docstring as Markdown: sections become lists, examples become blocks."""
    out: list[str] = []
    for block in re.split(r"\n\n(?=\S)", doc):
        head, _, rest = block.partition("\n")
        body = inspect.cleandoc(rest) if rest else ""
        if head in ("Args:", "Returns:") and body:
            entries = re.sub(r"\n\s+", " ", body)
            listed = re.sub(r"(?m)^([\w*, ]+): ", r"- `\1`: ", entries) if head == "Args:" else entries
            out.append(f"**{head[:-1]}**\n\n{listed}")
        elif head == "Example:":
            out.append(f"**Example**\n\n```pycon\n{body}\n```")
        elif rest and all(line.startswith("    ") or not line for line in rest.splitlines()) and not head.strip():
            out.append(f"```text\n{body}\n```")
        elif block.startswith("    "):
            out.append(f"```text\n{inspect.cleandoc(block)}\n```")
        else:
            out.append(block)
    return "\n\n".join(out)


def _members(thing: Any) -> list[str]:
    """Public methods and properties of a class that is not a plain record, a line each; the fields of a record."""
    if not inspect.isclass(thing) or thing is GuardConfig or issubclass(thing, Exception | tuple):
        return []
    if dataclasses.is_dataclass(thing) and thing is not sg.Policy and "Args:" not in (thing.__doc__ or ""):
        fields = [field.name for field in dataclasses.fields(thing)]
        return ["Fields: " + ", ".join(f"`{name}`" for name in fields) + "."]
    rows = []
    for name, member in vars(thing).items():
        doc = inspect.getdoc(member) if not name.startswith("_") else None
        if doc and (callable(member) or isinstance(member, property | staticmethod | classmethod)):
            call = "" if isinstance(member, property) else "()"
            first = " ".join(doc.split("\n\n")[0].split())
            rows.append(f"| `{name}{call}` | {first} |")
    return ["| member | what it is |\n|---|---|\n" + "\n".join(rows)] if rows else []


def _numbers() -> str:
    """Every field of a policy: its value in each preset, and its meaning from the line below it in the source."""
    body = ast.parse(inspect.getsource(sg.Policy)).body[0].body  # type: ignore[attr-defined]
    meanings: dict[str, str] = {}
    for field, after in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            meanings[field.target.id] = " ".join(str(after.value.value).split()) if said else ""  # type: ignore[attr-defined]
    rows = []
    for name, meaning in meanings.items():
        usual = _value(getattr(PRESETS["balanced"], name))
        others = {preset: _value(getattr(policy, name)) for preset, policy in PRESETS.items()}
        differing = [f"`{preset}`: {value}" for preset, value in others.items() if value != usual and name != "name"]
        other = f" ({'; '.join(differing)})" if differing else ""
        rows.append(f"| `{name}` | {usual} | {meaning}{other} |")
    return "| number | `balanced` | meaning |\n|---|---|---|\n" + "\n".join(rows)


def _value(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return ", ".join(f"{at}: {action}" for at, action in value)
    if dataclasses.is_dataclass(value):
        return ", ".join(f"{field.name} {getattr(value, field.name):g}" for field in dataclasses.fields(value))
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
