"""Every number of a run, and the modes that name some of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import steadygrad as sg
from steadygrad import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run. What is written into `settings.json` beside the results is exactly this."""

    mode: str = "from_scratch"
    steps: int = 300
    batch_size: int = 8
    seed: int = 0
    precision: str = "auto"

    # the objective; the terms of the loss are these weights times what they weigh
    match: str = "begins"
    """How teacher tokens become student tokens: the one their spelling `begins` with, or only the `same` ones."""
    temperature: float = 1.0
    kd_weight: float = 0.5
    ce_weight: float = 0.5
    anchor_weight: float = 1e-2
    balance_weight: float = 1e-2
    entropy_weight: float = 1e-3

    # the optimizer
    student_lr: float = 3e-3
    router_lr: float = 1e-3
    max_grad_norm: float = 0.5
    warmup: int = 20
    largest_norm: float = 2.0
    """A gradient norm above this is refused."""
    halt_after: int = 10
    """So many refused batches in a row end the run."""
    fall_back_after: int = 3
    """A term that is not finite so many batches in a row is left out: without the teacher, the text alone teaches."""
    return_after: int = 100
    """After so many good batches without it, it is tried again."""

    # the teacher's experts
    experts: int = 8
    top_k: int = 6
    shared: float = 0.5
    train_routers: bool = True

    # the student
    vocabulary: int = 2048
    width: int = 128
    layers: int = 3

    # text
    max_bytes: int = 400
    data: str | None = None
    teacher: str | None = None
    student: str | None = None
    """A folder with a student of an earlier run to go on with; None begins with random weights."""

    eval_every: int = 50
    checkpoint_every: int = 100

    def policy(self) -> sg.Policy:
        """The guard's: refuse a norm above `largest_norm`, halt after `halt_after` refused batches in a row."""
        base = sg.Policy.named("ultra_conservative" if self.mode == "ultra_conservative" else "balanced")
        drop_term = next(action for _, action in base.escalation if action == "drop_term")
        return base.but(
            name=self.mode,
            max_norm_to_apply=self.largest_norm,
            skip_streak_halt=self.halt_after,
            drop_term_after=self.fall_back_after,
            recovery_steps=self.return_after,
            # A teacher that breaks down spoils the terms of its routers too, so several terms may have to go at once.
            escalation=((self.fall_back_after, drop_term), *base.escalation),
        )

    def ce_only(self) -> Settings:
        """The control: everything the same, weight of the text included, but that no teacher speaks."""
        return replace(self, kd_weight=0.0, train_routers=False)


def _of_the_report(name: str, *, router_lr: float) -> dict[str, Any]:
    numbers = sg.Policy.named(name).suggested
    return {
        "student_lr": numbers.learning_rate, "router_lr": router_lr, "temperature": numbers.temperature,
        "kd_weight": numbers.kd_weight, "ce_weight": numbers.ce_weight, "max_grad_norm": numbers.max_grad_norm,
    }  # fmt: skip


MODES: dict[str, dict[str, Any]] = {
    "from_scratch": {},
    "balanced": _of_the_report("balanced", router_lr=1e-5),
    "ultra_conservative": _of_the_report("ultra_conservative", router_lr=1e-5),
}
"""`balanced` and `ultra_conservative` are numbers for a student that can speak already: with 1e-5 and 5e-6 a random one
learns next to nothing in a few hundred steps. `from_scratch` is for that."""


def make_settings(mode: str = "from_scratch", **changes: Any) -> Settings:
    """The settings of a mode, with some numbers changed. None means: as the mode has it."""
    if mode not in MODES:
        raise UsageError(f"There is no mode {mode!r}. There are: {', '.join(MODES)}.")
    given = {name: value for name, value in changes.items() if value is not None}
    settings = Settings(mode=mode, **{**MODES[mode], **given})
    checks = (
        (settings.steps >= 1, "steps must be at least 1"),
        (settings.batch_size >= 1, "batch_size must be at least 1"),
        (settings.temperature > 0, "temperature must be above 0"),
        (settings.kd_weight >= 0, "kd_weight must not be negative"),
        (settings.ce_weight > 0, "ce_weight must be above 0: without it the run on the text alone would learn nothing"),
        (1 <= settings.top_k <= settings.experts, f"top_k must lie between 1 and {settings.experts}, the experts"),
        (settings.match in ("begins", "same"), "match is begins or same"),
        (0 <= settings.shared < 1, "shared must be at least 0 and below 1"),
        (settings.width % 32 == 0, "width must be a multiple of 32"),
        (settings.precision in ("auto", "fp32", "bf16", "fp16"), "precision is auto, fp32, bf16 or fp16"),
    )
    for holds, sentence in checks:
        if not holds:
            raise UsageError(f"These settings cannot work: {sentence}.")
    return settings


def save_settings(settings: Settings, path: Path) -> None:
    path.write_text(json.dumps(asdict(settings), indent=1) + "\n", encoding="utf-8")


def load_settings(path: Path) -> Settings:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        known = {entry.name for entry in fields(Settings)}
        return Settings(**{name: value for name, value in saved.items() if name in known})
    except FileNotFoundError:
        raise UsageError(f"There is no run in {path.parent}: it has no {path.name}.") from None
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
