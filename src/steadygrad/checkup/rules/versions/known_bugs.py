"""The table of known bugs as rules of the doctor: a version that matches, and every trait of the condition."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from ....records.checks.checkup import Advice, Level
from ....records.rules import Rule
from ...advice import about, at
from ...inputs.facts import Setup
from ...inputs.script import Script
from ...inputs.script_traits import traits_of_script

TABLE = Path(__file__).with_name("known_bugs.toml")
UNKNOWN_IN_SOURCE = frozenset({"hopper"})
"""Traits of a machine that no script shows: then what is found in a script is a note."""
_PINNED = re.compile(r"""^#\s+["']?(?P<name>[A-Za-z_]+)==(?P<version>[\d.]+)""", re.MULTILINE)


@cache
def known_bugs() -> tuple[ModuleType, ...]:
    """Each bug of the table as a rule, in the order of the codes."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))["bug"]
    return tuple(_as_rule(entry) for entry in sorted(table, key=lambda entry: str(entry["code"])))


def _as_rule(entry: Mapping[str, Any]) -> ModuleType:
    rule = Rule(entry["code"], entry["slug"], entry["summary"])
    made = ModuleType(f"{__package__}.{rule.code.lower()}_{rule.slug}", entry["summary"])
    module: Any = made
    live = frozenset(entry["live"])

    def of_setup(setup: Setup) -> Iterator[Advice]:
        found = setup.versions.get(entry["library"], "")
        if live and live <= setup.traits and matches(found, entry["versions"]):
            yield about(
                rule, Level.WARNING, entry["library"], entry["detail"].format(library=entry["library"], version=found),
                help=entry["help"], version=found,
            )  # fmt: skip

    def of_script(script: Script) -> Iterator[Advice]:
        found = version_for(script, entry["library"])
        if not matches(found, entry["versions"]):
            return
        traits = traits_of_script(script)
        if frozenset(entry["source"]) <= traits.keys():
            level = Level.NOTE if live & UNKNOWN_IN_SOURCE else Level.WARNING
            detail = entry["detail"].format(library=entry["library"], version=found).replace(" on this device", "")
            yield at(rule, level, script, traits[entry["at"]], detail, help=entry["help"])

    module.RULE, module.of_script = rule, of_script
    pinned = "# {library}=={version}\n"
    module.SPECIMENS = [pinned.format(library=entry["library"], version=entry["bad"]) + entry["specimen"]]
    module.NEAR_MISSES = [
        pinned.format(library=entry["library"], version=entry["good"]) + entry["specimen"],
        pinned.format(library=entry["library"], version=entry["bad"]) + entry["near_miss"],
    ]
    if live:
        bad, good = {entry["library"]: entry["bad"]}, {entry["library"]: entry["good"]}
        module.of_setup = of_setup
        module.SPECIMENS.append(Setup(versions=bad, traits=live))
        module.NEAR_MISSES.append(Setup(versions=good, traits=live))
        module.NEAR_MISSES += [Setup(versions=bad, traits=live - {trait}) for trait in sorted(live)]
    return made


def version_for(script: Script, library: str) -> str:
    """The version that a script pins in a comment (as inline metadata does), else the one installed here, else ""."""
    pins = {found["name"]: found["version"] for found in _PINNED.finditer(script.text)}
    return pins.get(library) or installed(library)


@cache
def installed(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def matches(found: str, wanted: str) -> bool:
    """Whether a version lies in a range such as ">=4.47,<4.48". An unknown version matches nothing."""
    if not found:
        return False
    return all(_compare(_numbers(found), part.strip()) for part in wanted.split(","))


def _compare(found: tuple[int, ...], part: str) -> bool:
    operator = ">=" if part.startswith(">=") else part[0]
    other = _numbers(part.removeprefix(operator))
    return found[: len(other)] >= other if operator == ">=" else found[: len(other)] < other


def _numbers(text: str) -> tuple[int, ...]:
    """2.11.0+cu130 -> (2, 11, 0)."""
    leading = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(number) for number in leading.group().split(".")) if leading else ()
