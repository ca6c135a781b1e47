"""What a coded rule is, and how rules are found.

A rule is a module in one of the rule folders (`detect/detectors`, `diagnosis/causes`, `checkup/rules` ...)
that defines `RULE = Rule(...)`. Its docstring is its page: the first line is the summary, the rest are the fixed
headings below. Nothing here imports torch, so `steady explain CODE` starts at once: a rule's page is read from the
source of its module without importing it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

from .errors import TABLE, InternalError, UsageError, internal_errors

HEADINGS = ("What it sees", "Why it hurts", "Smallest example", "What to do", "Safety", "References")
ROOMS = (
    "detect/detectors", "detect/sampled", "detect/patterns", "detect/loop", "detect/graph",
    "diagnosis/causes", "diagnosis/remedies",
    "checkup/rules", "checkup/scan/rules", "checkup/trials/batch_rules",
    "numerics/rules",
)  # fmt: skip
CODE = re.compile(r"^(SY|DX|RX|PF|CK|IE)\d{3}$")


@dataclass(frozen=True, slots=True)
class Rule:
    """One stable code. Codes are never renumbered and never reused."""

    code: str
    slug: str
    summary: str

    def __post_init__(self) -> None:
        if not CODE.match(self.code):
            raise UsageError(f"{self.code!r} is no rule code: expected SY, DX, RX, PF, CK or IE and three digits.")


@dataclass(frozen=True, slots=True)
class RulePage:
    """A rule as a person reads it: its code, name, and the sections of its page."""

    code: str
    slug: str
    summary: str
    sections: dict[str, str]
    path: Path


def _page_of(path: Path) -> RulePage | None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        if [getattr(target, "id", None) for target in node.targets] != ["RULE"]:
            continue
        values = [ast.literal_eval(argument) for argument in node.value.args]
        values += [ast.literal_eval(keyword.value) for keyword in node.value.keywords]
        code, slug, summary = (str(value) for value in values[:3])
        return RulePage(code, slug, summary, _sections(ast.get_docstring(tree) or ""), path)
    return None


def _sections(doc: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    current: str | None = None
    for line in doc.splitlines():
        heading = line.strip().rstrip(":")
        if heading in HEADINGS and not line.startswith(" "):
            current = heading
            found[current] = []
        elif current is not None:
            found[current].append(line)
    return {heading: "\n".join(lines).strip("\n") for heading, lines in found.items()}


@cache
def pages() -> tuple[RulePage, ...]:
    """Every rule's page, sorted by code. Reads source files; imports none of them."""
    return tuple(sorted(_walk(), key=lambda page: page.code))


def _walk() -> Iterator[RulePage]:
    for path in _files():
        yield from _pages_in(path)
    yield from map(_page_of_error, internal_errors().values())


def _pages_in(path: Path) -> Iterator[RulePage]:
    """The page of a rule's module, or one page for every table of a file of data."""
    if path.suffix == ".toml":
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["bug"]:
            yield _page_of_data(entry, path)
    elif found := _page_of(path):
        yield found


def _page_of_data(entry: dict[str, Any], path: Path) -> RulePage:
    texts = (
        entry["sees"], entry["why"], entry["example"].strip("\n"),
        f"{entry['todo']} Versions: {entry['library']} {entry['versions']}.",
        entry["safety"], "\n".join(entry["links"]),
    )  # fmt: skip
    sections = {heading: indent(text, "    ") for heading, text in zip(HEADINGS, texts, strict=True)}
    return RulePage(entry["code"], entry["slug"], entry["summary"], sections, path)


def _page_of_error(error: InternalError) -> RulePage:
    texts = (
        f"An exception in the part for {error.does}. It was caught: the program does not see it, and training goes on.",
        error.without,
        """import logging
logging.getLogger("steadygrad").setLevel(logging.DEBUG)  # prints where it arose""",
        "Please report it, with the lines that the example prints and the versions in `run.json`.",
        "It is logged once for each part and counted in the summary; nothing is called fine that was not looked at.",
        f"Event `guard_fault` with code {error.code} in the run directory.",
    )
    sections = {heading: indent(text, "    ") for heading, text in zip(HEADINGS, texts, strict=True)}
    summary = f"An internal error of steadygrad in the part for {error.does}."
    return RulePage(error.code, f"internal_{error.part}", summary, sections, TABLE)


def _files() -> Iterator[Path]:
    home = Path(__file__).resolve().parents[1]
    for room in ROOMS:
        yield from sorted(path for path in (home / room).rglob("*") if path.suffix in (".py", ".toml"))


def rule_modules(package: str, home: Path, pattern: str) -> tuple[ModuleType, ...]:
    """The modules of a package's rules, in the order of their codes, whichever family's folder they are in."""
    paths = sorted(home.rglob(f"{pattern}.py"), key=lambda path: path.name)
    return tuple(import_module(".".join([package, *path.relative_to(home).with_suffix("").parts])) for path in paths)


def page(code: str) -> RulePage:
    """The page of one code, for example `page("SY101")`; also accepts the slug."""
    wanted = code.strip()
    for path in _files():
        text = path.read_text(encoding="utf-8")
        # Parsing all of them would take longer than everything else that `steady explain` does.
        if f'"{wanted.upper()}"' not in text and f'"{wanted.lower()}"' not in text:
            continue
        for found in _pages_in(path):
            if found.code == wanted.upper() or found.slug == wanted.lower():
                return found
    for error in internal_errors().values():
        if wanted.upper() == error.code or wanted.lower() == f"internal_{error.part}":
            return _page_of_error(error)
    every = pages()
    near = ", ".join(f"{each.code} {each.slug}" for each in nearest(wanted, every))
    raise UsageError(
        f"There is no rule {wanted!r}. {f'Near it: {near}. ' if near else ''}`steady explain` with no code lists all "
        f"{len(every)} of them."
    )


def nearest(wanted: str, every: Sequence[RulePage], most: int = 5) -> list[RulePage]:
    """The rules that this may mean: by the words of their names, then by words of their summaries, then by spelling."""
    words = [word for word in wanted.lower().replace("-", "_").replace(" ", "_").split("_") if word]
    words += [other for word in words for other in _SYNONYMS.get(word, ())]

    def likeness(each: RulePage) -> float:
        parts = each.slug.split("_")
        named = sum(
            any(part.startswith(word) or (len(part) > 4 and word.startswith(part)) for part in parts) for word in words
        )
        said = sum(word in each.summary.lower() for word in words)
        spelled = SequenceMatcher(None, wanted.lower(), each.slug).ratio()
        coded = SequenceMatcher(None, wanted.upper(), each.code).ratio() >= 0.8
        return 2.0 * named + said + coded + (spelled if spelled >= 0.6 else 0.0)

    ranked = sorted(((likeness(each), each) for each in every), key=lambda pair: (-pair[0], pair[1].code))
    return [each for score, each in ranked[:most] if score >= 0.6]


def _begins(word: str, part: str) -> bool:
    return len(part) > 4 and word.startswith(part)


_SYNONYMS = {"nan": ("finite",), "inf": ("finite",), "infinity": ("finite",), "nonfinite": ("finite",)}
