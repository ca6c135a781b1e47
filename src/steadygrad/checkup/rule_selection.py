"""Which rules run: chosen on the command line, in pyproject.toml, or silenced by a comment."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ..records.checks.checkup import Advice
from ..records.errors import UsageError
from .rules import judges

ALLOW = re.compile(r"#\s*steady:\s*allow(?P<file>-file)?\s+(?P<codes>PF\d{0,3}(?:[\s,]+PF\d{0,3})*)")
CODE = re.compile(r"^PF\d{0,3}$")
KEYS = {"select", "ignore", "exclude"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Codes or beginnings of codes (`PF4` is all of PF4xx). Nothing selected means all."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    source: str = field(default="", compare=False)

    def wants(self, code: str) -> bool:
        """Whether a rule shall run."""
        chosen = not self.select or code.startswith(self.select)
        return chosen and not (self.ignore and code.startswith(self.ignore))

    def excludes(self, path: Path) -> bool:
        """Whether a file found in a folder is left out: `exclude` holds patterns such as `tests/*`."""
        return any(path.match(pattern) for pattern in self.exclude)

    def judges(self, rules: Iterable[ModuleType] | None = None) -> list[ModuleType]:
        """The rules that run."""
        return [rule for rule in (judges() if rules is None else rules) if self.wants(rule.RULE.code)]


def chosen(
    select: Sequence[str] = (), ignore: Sequence[str] = (), *, near: Path | None = None, known: bool = True
) -> Selection:
    """What was asked for, over what pyproject.toml above `near` says. `--select` replaces, `--ignore` adds."""
    written = configured(near) if near is not None else Selection()
    picked = tuple(_codes(select, known=known))
    return Selection(
        select=picked or written.select,
        ignore=(*written.ignore, *_codes(ignore, known=known)),
        exclude=written.exclude,
        source=written.source,
    )


def configured(near: Path) -> Selection:
    """`[tool.steadygrad.doctor]` of the nearest pyproject.toml that has it."""
    start = near.resolve()
    for folder in [start, *start.parents]:
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {error}.") from None
        table = data.get("tool", {}).get("steadygrad", {})
        table = table.get("doctor") if isinstance(table, dict) else None
        if table is None:
            continue
        if not isinstance(table, dict) or not table.keys() <= KEYS:
            raise UsageError(f"{path}: [tool.steadygrad.doctor] takes {', '.join(sorted(KEYS))}, each a list of words.")
        lists = {key: table.get(key, []) for key in KEYS}
        if any(not isinstance(value, list) or any(not isinstance(w, str) for w in value) for value in lists.values()):
            raise UsageError(f"{path}: select, ignore and exclude of [tool.steadygrad.doctor] are lists of words.")
        return Selection(
            select=tuple(_codes(lists["select"])),
            ignore=tuple(_codes(lists["ignore"])),
            exclude=tuple(lists["exclude"]),
            source=str(path),
        )
    return Selection()


def _codes(words: Iterable[str], *, known: bool = True) -> Iterable[str]:
    for word in words:
        for code in re.split(r"[\s,]+", word.strip()):
            if not CODE.match(code.upper()):
                raise UsageError(
                    f"{code!r} is no code of the doctor: expected PF and up to three digits, such as PF101."
                )
            if known and not any(rule.RULE.code.startswith(code.upper()) for rule in judges()):
                raise UsageError(f"There is no rule {code}. `steady explain` lists them.")
            yield code.upper()


def allowed(advice: Advice, lines: Sequence[str]) -> bool:
    """Whether a comment allows it: on its line, on its own line just above, or `allow-file` anywhere."""
    for number, line in enumerate(lines, start=1):
        found = ALLOW.search(line)
        if found is None or not advice.code.startswith(tuple(re.split(r"[\s,]+", found["codes"].strip()))):
            continue
        alone = line.lstrip().startswith("#")
        if found["file"] or number == advice.line or (alone and number == advice.line - 1):
            return True
    return False
