"""What a user can choose once for a guard, checked in one place. Frozen; every entry point takes the same names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, TypedDict

from torch.optim import Optimizer

from ..policy import PRESETS, Policy
from ..records.errors import UsageError

ExtraState = Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]]
PRECISIONS = ("fp32", "bf16", "fp16")


class GuardOptions(TypedDict, total=False):
    """The keyword arguments of `sg.Guard` and, where they apply, of `sg.attach`. Their meaning is in GuardConfig."""

    max_grad_norm: float | None
    scheduler: Any
    run_dir: Any
    policy: str | Policy
    precision: str
    scaler: Any
    accumulate: int
    ema: Any
    clip: str
    settle: str
    snapshots: str
    checkpoint_every: int | None
    keep_checkpoints: int
    resume: bool
    diagnose: str
    capsule: str
    capsule_bytes: int
    batch_key: Callable[[Any], str] | None
    extra_state: ExtraState | None
    notify: Any
    self_check: str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """How a training is guarded.

    Args:
        max_grad_norm: clip by global norm; None measures and does not clip.
        scheduler: a learning-rate scheduler; it advances on applied updates only.
        run_dir: where the journal goes; None keeps it in memory.
        policy: "observe", "balanced", "ultra_conservative", or a Policy.
        precision: "fp32", "bf16" or "fp16"; the guard enters autocast and, for fp16, scales the loss.
        scaler: your own GradScaler instead.
        accumulate: micro-batches per update.
        ema: anything with `update_parameters(model)` or `update()`, or a callable; advances on applied updates only.
        clip: "exact" (bit-identical to torch's clip) or "folded" (inside the fused optimizer, cheaper).
        settle: "auto", "late" (one step late; needs a fused optimizer) or "now" (one host read a step).
        snapshots: "auto", "host", "device" or "off": where the ring of last good states is kept.
        checkpoint_every: steps between checkpoints in `run_dir/snapshots`; None writes none.
        keep_checkpoints: how many of them are kept.
        resume: continue from the last good checkpoint in `run_dir`, if there is one.
        diagnose: "auto" (the first incidents of a kind, at once), "origin" (without trying remedies), or "off".
        capsule: what `steady replay` needs of the first incident of each kind, in run_dir: "keep" (the state and the
            batches, as they are), "redact" (of batches only shapes and dtypes), or "off".
        capsule_bytes: the most a capsule may take; past it weights are left out.
        batch_key: `batch_key(batch)` names a batch in the journal; by default batches are counted.
        extra_state: name -> (take, put) for state the guard cannot see, such as your own generator.
        notify: who is notified of every incident, from a separate thread: an http(s) URL that gets a POST, a command
            that gets the incident as JSON on standard input, or a function that gets it as a dictionary. A run that
            is open in Weights & Biases, Trackio or MLflow is notified too; False notifies nothing.
        self_check: the share of steps, such as "1%" or 0.01, whose forward and backward run twice and are compared
            before the update; None checks none.
        outside: a trainer runs forward and backward the first time, steps the schedule, and says where a window ends.
        precision_shown: what the run's records say of the precision, where a trainer chooses it.
    """

    max_grad_norm: float | None = None
    scheduler: Any = None
    run_dir: Any = None
    policy: Policy = PRESETS["balanced"]
    precision: str = "fp32"
    scaler: Any = None
    accumulate: int = 1
    ema: Any = None
    clip: str = "exact"
    settle: str = "auto"
    snapshots: str = "auto"
    checkpoint_every: int | None = None
    keep_checkpoints: int = 3
    resume: bool = False
    diagnose: str = "auto"
    capsule: str = "keep"
    capsule_bytes: int = 2 << 30
    batch_key: Callable[[Any], str] | None = None
    extra_state: ExtraState | None = None
    notify: Any = None
    self_check: str | float | None = None
    outside: bool = False
    precision_shown: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], **fixed: Any) -> GuardConfig:
        """The configuration of these keyword arguments; one clear sentence for a name or a value that cannot work."""
        known = {entry.name for entry in fields(cls)} - {"outside", "precision_shown"}
        check_options(options, known)
        chosen = {**options, **fixed}
        if "policy" in chosen:
            chosen["policy"] = Policy.named(chosen["policy"])
        return cls(**chosen)

    @property
    def steps_between_self_checks(self) -> int:
        """One step in so many is computed twice; 0 if none is."""
        share = _share(self.self_check)
        return round(1 / share) if share else 0

    def but(self, **changes: Any) -> GuardConfig:
        """This configuration with some values changed."""
        return replace(self, **changes)

    def __post_init__(self) -> None:
        _check_numbers(self)
        _share(self.self_check)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("clip", self.clip, ("exact", "folded"))
        _one_of("settle", self.settle, ("auto", "late", "now"))
        _one_of("snapshots", self.snapshots, ("auto", "host", "device", "off"))
        _one_of("diagnose", self.diagnose, ("auto", "origin", "off"))
        _one_of("capsule", self.capsule, ("keep", "redact", "off"))
        check_scheduler(self.scheduler)
        if any(kind.__name__ == "ReduceLROnPlateau" for kind in type(self.scheduler).__mro__) and not self.outside:
            raise UsageError(
                "ReduceLROnPlateau needs a validation metric, so the guard cannot step it. "
                "Leave scheduler=None and call plateau.step(metric) yourself after each evaluation."
            )
        if self.scaler is not None and not any(kind.__name__ == "GradScaler" for kind in type(self.scaler).__mro__):
            raise UsageError(f"scaler must be a torch.amp.GradScaler, got {type(self.scaler).__name__}.")


def _check_numbers(config: GuardConfig) -> None:
    if config.max_grad_norm is not None and not config.max_grad_norm > 0:
        raise UsageError(
            f"max_grad_norm must be above 0, or None to measure without clipping; got {config.max_grad_norm!r}."
        )
    if not isinstance(config.capsule_bytes, int) or config.capsule_bytes < 1:
        raise UsageError(
            f"capsule_bytes is the most a capsule may take and must be at least 1; got {config.capsule_bytes!r}."
        )
    if not isinstance(config.accumulate, int) or config.accumulate < 1:
        raise UsageError(
            f"accumulate counts micro-batches per update and must be at least 1; got {config.accumulate!r}."
        )
    if config.checkpoint_every is not None and config.run_dir is None:
        raise UsageError("checkpoint_every needs a run_dir to write to.")
    if (config.checkpoint_every is not None and config.checkpoint_every < 1) or config.keep_checkpoints < 1:
        raise UsageError(
            f"checkpoint_every and keep_checkpoints count steps and files and must be at least 1; got "
            f"{config.checkpoint_every!r} and {config.keep_checkpoints!r}. Leave checkpoint_every out to write none."
        )


def _share(value: Any) -> float:
    """A share of steps: "1%", 0.01, or None for none."""
    try:
        share = float(value[:-1]) / 100 if isinstance(value, str) and value.endswith("%") else float(value or 0.0)
    except (TypeError, ValueError):
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise UsageError(f'self_check is a share of all steps, such as "1%" or 0.01, or None; got {value!r}.')
    return share


def _one_of(name: str, value: Any, choices: Any) -> None:
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def check_options(options: Mapping[str, Any], known: Collection[str]) -> None:
    """One sentence for a name that is none of an option."""
    if unknown := sorted(set(options) - set(known)):
        near = get_close_matches(unknown[0], known, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"There is no option {', '.join(unknown)}.{meant} The options are: {', '.join(sorted(known))}."
        )


def check_scheduler(scheduler: Any) -> None:
    """One sentence for something that is no schedule."""
    if scheduler is not None and (isinstance(scheduler, Optimizer) or not callable(getattr(scheduler, "step", None))):
        raise UsageError(
            f"scheduler is a {type(scheduler).__name__}, not a learning-rate schedule. Give an object of "
            "torch.optim.lr_scheduler, or leave it out."
        )
