"""What the generated programs import: a regime by its name, and a file for what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

from .devices import on_chosen_device
from .regimes import REGIMES
from .sick import SICK
from .state import bad_values, state_of
from .training import Training


def build(name: str, seed: int) -> Training:
    """A healthy or a sick training by its name."""
    return on_chosen_device((REGIMES | SICK)[name](seed))


class Builder:
    """Builds one training again and again, and knows its name."""

    def __init__(self, name: str, seed: int) -> None:
        if name not in REGIMES and name not in SICK:
            raise ValueError(f"There is no regime {name!r}; `python -m soak --list` has them all.")
        self.name, self.seed = name, seed

    def __call__(self) -> Training:
        return build(self.name, self.seed)


def write_state(training: Training, path: str) -> None:
    """Digests of everything the training left behind, as JSON."""
    Path(path).write_text(json.dumps({"state": state_of(training), "bad": bad_values(training)}), encoding="utf-8")
