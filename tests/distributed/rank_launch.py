"""How the tests start ranks, and what they learn of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 240.0
"""How long a scenario may take before it counts as a hang: generous, because a test must not depend on speed."""


@dataclass(frozen=True)
class Ended:
    """How one rank ended: its exit status (None: it had to be ended), and what it returned or raised."""

    status: int | None
    told: dict[str, Any]
    log: str
    folder: Path

    @property
    def returned(self) -> Any:
        assert "returned" in self.told, f"status {self.status}, {self.told}\n{self.log}"
        return self.told["returned"]

    @property
    def message(self) -> str:
        assert "raised" in self.told, f"status {self.status}, {self.told}\n{self.log}"
        return str(self.told["message"])


RunRanks = Callable[..., list[Ended]]


def launch(
    nursery: subprocess.Popen[str], folder: Path, scenario: str, world: int, options: dict[str, Any], limit: float
) -> list[Ended]:
    """Run one scenario on that many ranks and wait for all of them."""
    folder.mkdir(exist_ok=True)
    (folder / "meeting").unlink(missing_ok=True)
    for old in folder.glob("rank?.json"):
        old.unlink()
    job = {"scenario": scenario, "world": world, "folder": str(folder), "options": options, "limit": limit}
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(json.dumps(job) + "\n")
    nursery.stdin.flush()
    ended = []
    for rank, status in enumerate(json.loads(nursery.stdout.readline())):
        path, log = folder / f"rank{rank}.json", folder / f"rank{rank}.log"
        told = json.loads(path.read_text()) if path.exists() else {}
        ended.append(Ended(status, told, log.read_text(errors="replace") if log.exists() else "", folder))
    return ended
