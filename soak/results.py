"""One result per regime, seed and entry point: a line of JSON each, appended as it comes, so that a run can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import steadygrad

from .devices import CPU, chosen_device

LEFT_ALONE, DISTURBED, NOT_APPLICABLE, FAILED = "left alone", "disturbed", "n/a", "failed"
ACTED, MISSED = "acted", "missed"
AS_MEANT = "as meant"
GOOD = (LEFT_ALONE, NOT_APPLICABLE, ACTED, AS_MEANT)


Key = tuple[str, int, str, int, str]


@cache
def code_digest() -> str:
    """Of every source file that a result depends on, the package and the regimes, and of the device."""
    digest = hashlib.sha256(b"" if chosen_device() == CPU else chosen_device().encode())
    for folder in (Path(steadygrad.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(kw_only=True)
class Result:
    """What came of one regime with one seed at one entry point.

    Attributes:
        kind: "healthy", "poisoned" or "diverging".
        steps: updates asked for; `guarded` are those the guard counted.
        status: "left alone", "disturbed", "n/a" or "failed" for a healthy one; "acted" or "missed" for a sick one;
            "as meant" or "failed" for a run without a guard.
        why: what was wrong, or why this entry point cannot express it.
        loss: the plain run's mean loss over its first and last tenth; None where it is not finite.
        code: digest of the package and of the regimes, so that results of other code are not taken for its own.
        warnings: codes of findings and messages of the guard, with how often; allowed, and listed.
    """

    regime: str
    seed: int
    entry_point: str
    kind: str
    steps: int
    guarded: int = 0
    overflows: int = 0
    code: str = ""
    status: str = FAILED
    why: str = ""
    loss: tuple[float | None, float | None] = (None, None)
    plain_healthy: bool = True
    warnings: dict[str, int] = field(default_factory=dict)
    plain_s: float = 0.0
    guarded_s: float = 0.0

    @property
    def key(self) -> Key:
        return self.regime, self.seed, self.entry_point, self.steps, self.code

    @property
    def good(self) -> bool:
        return self.status in GOOD and (self.plain_healthy or self.kind != "healthy")


def append(path: Path, result: Result) -> None:
    """One line, in one write, so that several workers can share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(asdict(result), allow_nan=False) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def read(path: Path) -> list[Result]:
    """The results so far; the last one counts where there are two of one key. A torn last line is left out."""
    found: dict[Key, Result] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            result = _from_plain(json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        found[result.key] = result
    return list(found.values())


def _from_plain(data: dict[str, Any]) -> Result:
    known = {each.name for each in fields(Result)}
    values = {name: value for name, value in data.items() if name in known}
    return Result(**{**values, "loss": tuple(values["loss"])})


def total_guarded(results: Iterable[Result]) -> int:
    """Guarded updates of healthy runs."""
    return sum(result.guarded for result in results if result.kind == "healthy")
