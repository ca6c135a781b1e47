"""The numbers a policy holds, the presets a user can name, and what a run makes possible."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from ..records import Action
from ..records.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggested:
    """Starting points for a distillation run under a preset. Recipes read them; the guard applies none of them."""

    learning_rate: float
    temperature: float
    kd_weight: float
    ce_weight: float
    max_grad_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every number the guard judges and decides with. Change one with `dataclasses.replace` or `Policy.but`.

    Args:
        every field: listed with its meaning and its value in each preset on the page Policy of the reference.

    Returns:
        A frozen record; one clear sentence (UsageError) where numbers contradict each other.

    Example:
        >>> careful = sg.Policy.named("balanced").but(skip_streak_halt=3, refuse_spikes=True)
        >>> careful.skip_streak_halt, careful.success_alarm
        (3, 0.85)
    """

    name: str = "balanced"
    """What the run's records call it."""
    acts: bool = True
    """False: nothing in training is changed and nothing refused (`observe`)."""

    # Budgets
    skip_streak_halt: int = 10
    """Halt at this many bad steps in a row."""
    start_patience: int = 1
    """Times as many while no update has been applied yet, and while the program raises its learning rate from update
    to update. `steady run` sets 10: short trainings as in tests, and searches for the largest learning rate, end as
    they would without us."""
    skips_per_window: tuple[int, int] = (200, 200)
    """Halt when more than the first number of the last second-number steps were skipped; (200, 200) never does."""
    success_notice: float = 0.90
    """Note it when fewer than this share of the last `success_window` steps were applied."""
    success_alarm: float = 0.85
    """Warn when fewer than this share were applied. `steady verify` fails below it."""
    success_window: int = 200
    """How many of the last steps the share is taken of."""
    success_min_steps: int = 50
    """Before this many steps the share says nothing."""

    # Spikes: a norm or a loss that is finite and above all of these at once
    refuse_spikes: bool = False
    """Refuse spikes. By default they are recorded, plotted and counted, and the update is applied: a finite value is
    no proof of harm."""
    spike_sigmas: float = 10.0
    """Robust standard deviations (of the logarithm, for norms) above the window's median."""
    spike_ratio: float = 10.0
    """Times the window's median."""
    spike_over_max: float = 2.0
    """Times the largest value the window has accepted."""
    spike_min_samples: int = 8
    """Before this many accepted values nothing is called a spike."""
    spike_patience: int = 5
    """With `refuse_spikes`: so many in a row are not spikes but a new level, and are applied."""
    spike_tail_share: float = 0.10
    """With `refuse_spikes`: nor are they spikes if more than this share of the recent steps are."""
    judge_loss_level: bool = True
    """False: how high the loss stands says nothing, as where it is zero by construction (advantages that are centred
    in their group). Spikes and divergence are then seen in the gradients alone."""
    max_norm_to_apply: float | None = None
    """Refuse every gradient norm above this, whatever the history says."""

    # Divergence: suspected by the level of the loss against its best, acted on only once batches that are evaluated
    # again show that training since the last good snapshot made the weights worse
    divergence_min_steps: int = 64
    """Before this many applied updates no divergence is suspected."""
    divergence_sigmas: float = 10.0
    """The loss must stand this many of its usual deviations above its best."""
    divergence_lost_progress: float = 0.9
    """And this share of all progress since the start must be lost."""
    runaway_ratio: float = 10.0
    """Loss and gradient norm both above this many times their first values are suspected at once."""
    divergence_cooldown: int = 32
    """Steps after a rollback before the next divergence can be acted on."""

    trial_rates: tuple[float, ...] = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
    """Where a divergence is shown, or a rollback comes with a smaller learning rate, these shares of the rate are tried
    first on the batches since the snapshot, in a few runs of which nothing is left; the best is used, and raised again
    only when a trial shows that more would hold. () tries none: the rate is then multiplied by `lr_factor`."""
    trial_after: int = 32
    """After this many steps, after twice as many, and then every `snapshot_every` steps it is looked whether the loss
    is back where it began, and in the first few hundred steps whether it has not fallen although the weights have
    moved. If so, `trial_rates` are tried; after a trial that shows nothing the pauses grow."""

    # Loss scale and stalls
    min_loss_scale: float = 1.0
    """A loss scale below this has collapsed (SY301)."""
    overflow_patience: int = 10
    """So has one that overflowed in this many steps in a row; twice as many before the first update."""
    stall_steps: int = 25
    """This many steps in a row without a useful update are a stalled run (SY302)."""

    # Escalation
    escalation: tuple[tuple[int, Action], ...] = (
        (6, Action.ROLLBACK),
        (7, Action.DROP_TERM),
        (8, Action.WIDEN_PRECISION),
    )
    """At this bad step in a row, or refused spike within `recovery_steps`, do this besides skipping. A rollback comes
    with a smaller learning rate, because the same batches at the same rate would lead to the same weights. What is
    changed is restored after `recovery_steps` healthy steps."""
    clip_ladder: tuple[float, ...] = (1.0, 0.5, 0.3)
    """What the clip is multiplied by, from one tightening to the next."""
    lr_factor: float = 0.5
    """What the learning rate is multiplied by at each rollback."""
    min_lr_factor: float = 1 / 16
    """Without a trial the learning rate is never lowered below this share of what was asked for."""
    hold_rate_after: int = 3
    """A learning rate that is no number for this many steps in a row is held at its last finite value for a while."""
    drop_term_after: int = 3
    """A single loss term that fails this many steps in a row is left out for a while."""
    recovery_steps: int = 100
    """Healthy steps after which everything that was changed is restored; twice as many after each relapse."""
    max_rollbacks: int = 3
    """Rollbacks without a recovery in between; after these no more are made, and bad weights halt the run."""

    # How often
    snapshot_every: int = 100
    """Steps between two snapshots in memory, which a rollback goes back to."""
    checkpoint_every: int = 1000
    """A starting point for the option of that name; a guard writes checkpoints only where it is asked to."""
    vitals_every: int = 200
    """Steps between two sampled checks for silent problems."""
    vitals_sample: int = 512
    """How many values of each tensor a sampled check reads."""

    suggested: Suggested = field(
        default=Suggested(learning_rate=1e-5, temperature=2.0, kd_weight=0.1, ce_weight=0.9, max_grad_norm=0.5)
    )
    """Starting points for a distillation run. Recipes read them; the guard applies none of them."""

    def __post_init__(self) -> None:
        count, window = self.skips_per_window
        checks = (
            (self.skip_streak_halt >= 1, "skip_streak_halt must be at least 1"),
            (self.start_patience >= 1, "start_patience must be at least 1"),
            (count >= 0 and window >= 1, "skips_per_window is (skips, window), for example (60, 200)"),
            (
                0 <= self.success_alarm <= self.success_notice <= 1,
                "success_alarm <= success_notice, both within 0 and 1",
            ),
            (0 < self.lr_factor < 1, "lr_factor must lie between 0 and 1, for example 0.5"),
            (0 < self.min_lr_factor <= 1, "min_lr_factor must lie above 0 and not above 1"),
            (
                all(0 < rate < 1 for rate in self.trial_rates)
                and list(self.trial_rates) == sorted(self.trial_rates, reverse=True),
                "trial_rates must fall and lie between 0 and 1, for example (0.3, 0.1, 0.03)",
            ),
            (self.trial_after >= 16, "trial_after must be at least 16"),
            (self.clip_ladder[:1] == (1.0,), "clip_ladder must start with 1.0, the clip the user asked for"),
            (list(self.clip_ladder) == sorted(self.clip_ladder, reverse=True), "clip_ladder must fall"),
            (all(clip > 0 for clip in self.clip_ladder), "clip_ladder must stay above 0"),
            (self.recovery_steps >= 1, "recovery_steps must be at least 1"),
            (self.spike_min_samples >= 2, "spike_min_samples must be at least 2"),
            (
                self.max_norm_to_apply is None or self.max_norm_to_apply > 0,
                "max_norm_to_apply must be above 0, or None",
            ),
            (self.vitals_every >= 1 and self.vitals_sample >= 1, "vitals_every and vitals_sample must be at least 1"),
        )
        for holds, sentence in checks:
            if not holds:
                raise UsageError(f"Policy {self.name!r} cannot work: {sentence}.")

    def but(self, **changes: object) -> Policy:
        """This policy with some numbers changed: `Policy.named("balanced").but(skip_streak_halt=3)`."""
        known = {entry.name for entry in fields(self)}
        if unknown := sorted(set(changes) - known):
            raise UsageError(f"A policy has no {', '.join(unknown)}. It has: {', '.join(sorted(known))}.")
        return replace(self, **changes)  # type: ignore[arg-type]  # the names were checked above, the values below

    @staticmethod
    def named(policy: str | Policy) -> Policy:
        """The preset of that name; a Policy is returned as it is."""
        if isinstance(policy, Policy):
            return policy
        if isinstance(policy, str) and policy in PRESETS:
            return PRESETS[policy]
        raise UsageError(f"There is no policy {policy!r}. Pass one of {', '.join(sorted(PRESETS))}, or a Policy.")


PRESETS = {
    preset.name: preset
    for preset in (
        Policy(name="observe", acts=False),
        Policy(name="balanced"),
        Policy(
            name="ultra_conservative",
            skips_per_window=(30, 200),
            refuse_spikes=True,
            max_norm_to_apply=2.0,
            escalation=(
                (3, Action.TIGHTEN_CLIP),
                (4, Action.TIGHTEN_CLIP),
                (5, Action.SCALE_LR),
                (6, Action.ROLLBACK),
                (7, Action.DROP_TERM),
                (8, Action.WIDEN_PRECISION),
            ),
            recovery_steps=200,
            snapshot_every=50,
            vitals_every=100,
            suggested=Suggested(learning_rate=5e-6, temperature=1.5, kd_weight=0.05, ce_weight=0.95, max_grad_norm=0.5),
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Which remedies are possible in this run. What is not possible is passed over, and skipping goes on."""

    hold: bool = True
    """An update can be withheld. Where it cannot, steps are judged and recorded only."""
    clip: bool = False
    """The user gave a max_grad_norm that can be tightened."""
    lr: bool = True
    rollback: bool = False
    """There is a good snapshot to go back to."""
    rerun: bool = True
    """A rollback loses nothing: batches can be run again, or the weights are of no use."""
    terms: tuple[str, ...] = ()
    """Loss terms that can be left out while others remain."""
    widen: bool = False
    """The run is in half precision and can be run wider."""
