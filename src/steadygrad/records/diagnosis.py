"""Where the first bad value was computed, why, and which remedies were tried."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .finding_and_decision import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigest:
    """A tensor in a line: enough to show why an op failed, nothing that keeps the tensor alive."""

    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    absmax: float = 0.0
    absmin: float = 0.0
    num_nan: int = 0
    num_inf: int = 0
    num_zero: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The op that made the first bad value. `module` is "" for the root module and None outside every module."""

    phase: str
    op: str | None = None
    module: str | None = None
    source: str | None = None
    code_line: str | None = None
    stack: tuple[str, ...] = ()
    ordinal: int | None = None
    tensor: str | None = None
    inputs: tuple[TensorDigest, ...] = ()
    outputs: tuple[TensorDigest, ...] = ()
    lead_up: tuple[TensorDigest, ...] = ()
    """What the ops before it made, earliest first, along the largest values: how the numbers grew. Named by op, module
    and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A named cause, for example DX101 fp16_overflow."""

    code: str
    slug: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that may help.

    `safety`: exact (same arithmetic), close (within rounding), behavioural (trains differently).
    """

    code: str
    slug: str
    change: str
    safety: str = "behavioural"
    code_change: str | None = None
    own_line: bool = False
    """Whether `code_change` is the line of the program with the change in it; else it is an example of the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One remedy tried on the failing step itself. `verified` is set here and nowhere else.

    `loss_gap` and `gradient_cosine` were taken over `rows_compared` of the batch's `num_rows` rows: those that are
    healthy without the remedy. None where rows cannot be told apart.
    """

    remedy: Remedy
    finite: bool
    verified: bool = False
    loss_gap: float | None = None
    gradient_cosine: float | None = None
    steps_followed: int = 0
    verdict: str = ""
    rows_compared: int | None = None
    num_rows: int | None = None

    @property
    def tried(self) -> bool:
        """Whether it could be tried at all; else `finite` says nothing."""
        return self.verified or not self.verdict.startswith(("not tried", "cannot be tried"))

    @property
    def skips(self) -> bool:
        """Whether it only leaves the batch out, which the guard did already: no remedy of the cause."""
        return self.remedy.slug == "skip_batch" or self.remedy.change.startswith("the batch skipped")

    @property
    def leaves_out(self) -> int:
        """0 for a remedy of the cause, 1 for rows that are left out, 2 for the whole batch."""
        return 2 if self.skips else int(self.remedy.slug == "drop_rows")

    @property
    def out_of_proportion(self) -> bool:
        """Whether the step is finite with a loss that is orders of magnitude from what it is otherwise."""
        return ", but the loss is " in self.verdict

    @property
    def order(self) -> int:
        """The cause remedied first, then rows left out, then a loss out of proportion; last, the batch skipped."""
        return 3 if self.skips else 2 if self.out_of_proportion else self.leaves_out

    @property
    def compared_with_most(self) -> bool:
        """Whether the distances were taken over at least half of the rows. Of fewer they prove nothing."""
        return self.rows_compared is None or self.num_rows is None or 2 * self.rows_compared >= self.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a replay of the failing step found. `rows` is None where rows make no sense, () where none was found.

    Args:
        symptom: what was seen: nan_loss, nan_grad, nan_param, nan_state and so on.
        phase: where it began: data, forward, loss, backward, optimizer, state or none.
        cause: the named cause (code and slug), None where it was not recognised.
        origin: the operation that computed the first bad value, with its line of code and its inputs.
        rows: rows of the batch that fail by themselves.
        rows_coupled: whether no row fails alone, as with batch normalisation.
        sample_ids: what those rows are in the data set, where that is known.
        confidence: between 0 and 1.
        reproduced: (how often it came again, how often it was replayed).
        because: the cause in one sentence.
        trials: remedies that were tried by replaying the step.
        notes: what was and was not replayed.
        step: the step that was looked at; of an incident of several steps it is one of them.

    Returns:
        A frozen record; `remedies` are the trials that made the step finite: of the cause first, and of those the
        least change first.

    Example:
        >>> found = sg.Diagnosis(symptom="nan_loss", phase="loss", because="div by an exact zero")
        >>> found.because, found.remedies
        ('div by an exact zero', ())
    """

    symptom: str
    phase: str
    cause: Cause | None = None
    origin: Origin | None = None
    rows: tuple[int, ...] | None = None
    rows_coupled: bool = False
    sample_ids: tuple[str, ...] = ()
    confidence: float = 0.0
    reproduced: tuple[int, int] = (0, 0)
    because: str = ""
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
    step: int | None = None

    @property
    def remedies(self) -> tuple[Trial, ...]:
        """The trials that made the step finite: those of the cause first, and of those the least change first."""
        return tuple(sorted((trial for trial in self.trials if trial.verified), key=lambda trial: trial.order))

    @property
    def remedy_in_words(self) -> str | None:
        """`verified remedy: ...`, or that skipping the batch is enough where nothing else was verified."""
        if not self.remedies:
            return None
        best = self.remedies[0]
        return SKIPPED_ALREADY if best.skips else f"verified remedy: {best.remedy.change or best.remedy.slug}"


SKIPPED_ALREADY = "skipping the batch is enough for this one"


def without_skipping(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis without the claim that leaving the batch out is enough: the next batch failed as well."""
    trials = tuple(
        replace(trial, verified=False, verdict="the next batch fails as well")
        if trial.verified and trial.skips
        else trial
        for trial in diagnosis.trials
    )
    return replace(diagnosis, trials=trials)


def silent_diagnosis(found: Finding) -> Diagnosis:
    """What the rule says, as a diagnosis: it names the cause, the place and what to change."""
    phase, source = str(found.evidence.get("phase", "loop")), found.evidence.get("source")
    return Diagnosis(
        symptom="silent",
        phase=phase,
        cause=Cause(**found.evidence.get("cause", {"code": found.code, "slug": found.slug})),
        origin=Origin(phase=phase, source=source, module=found.subject or None) if source or found.subject else None,
        confidence=0.8 if found.evidence.get("candidate") else 1.0,
        because=found.detail,
        notes=(f"what to do: {found.evidence['fix']}",) if "fix" in found.evidence else (),
    )
