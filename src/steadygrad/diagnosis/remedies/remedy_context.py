"""What a remedy may look at when it proposes itself, and what a proposal is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ...detect.observations.observed_run import Suspicion
from ...records import Origin
from ..causes.evidence import Evidence
from ..interventions.backend.alternatives import alternatives, failed_kernel
from ..interventions.call_arguments import CallIntervention, Operate
from ..locate.bad_rows import BadRows
from ..locate.examine import Examination
from ..locate.origin import only_of_parameters
from ..replay.replay_step import ReplayChange
from ..replay.replayable import Replayable


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyContext:
    """The patient with everything the diagnosis has found out so far."""

    replayable: Replayable
    evidence: Evidence
    cause: str
    origin: Origin | None
    rows: BadRows
    exam: Examination | None = None
    suspicion: Suspicion | None = None

    @property
    def silent(self) -> bool:
        """Whether nothing was non-finite: then a remedy must cure the pattern, not the number."""
        return self.evidence.kind not in ("non_finite", "tampered_gradient")

    @property
    def half(self) -> bool:
        """Whether half precision plays any part in this run."""
        kinds = {str(p.dtype).removeprefix("torch.") for p in self.replayable.model.parameters()}
        return self.evidence.autocast is not None or bool(kinds & {"float16", "bfloat16"}) or self.evidence.half

    @property
    def fp16(self) -> bool:
        kinds = {str(p.dtype) for p in self.replayable.model.parameters()}
        return self.evidence.autocast == "float16" or "torch.float16" in kinds or self.evidence.half

    @property
    def usual_rate(self) -> float | None:
        """The learning rate of the steps before this one; None in the first."""
        before = [r.lr for r in self.replayable.facts.history if r.step < self.replayable.facts.step and r.lr > 0]
        return sorted(before)[len(before) // 2] if before else None

    @property
    def guilty_parameters(self) -> frozenset[str]:
        """The parameters that the origin was computed from and nothing else: their values are wrong, not a batch."""
        exam = self.exam
        if exam is None or exam.record is None or exam.named is None or exam.record.stage == "commit":
            return frozenset()
        return only_of_parameters(exam.trace, exam.named)

    def steps_back(self) -> list[int]:
        """How many steps before a bad state may have been good: one, to the newest copy, and some more."""
        facts = self.replayable.facts
        kept = [facts.step - at for at in facts.kept_steps if at < facts.step][-1:]
        return list(dict.fromkeys((1, *kept, min(8, facts.step))))

    def can_operate(self) -> bool:
        """Whether the origin is a call that can be changed where it stands: of the forward pass, or of the user's own
        optimizer or backward."""
        named = self.exam.named if self.exam is not None else None
        if named is None or not named.call or named.site is None:
            return False
        return named.stage == "forward" or not named.site.library

    def operation(
        self, operate: Operate, *, everywhere: bool = False, also: Mapping[str, Operate] | None = None
    ) -> Callable[[], ReplayChange]:
        """The origin's call, or all calls of that name in its file, with other arguments, made anew for every trial.

        `also` are calls of other names, and what becomes of them.
        """
        named = self.exam.named if self.exam is not None else None
        assert named is not None
        assert named.where is not None
        site, name, owners = named.where, named.call, self.replayable.facts.owners
        return lambda: CallIntervention(site, name, operate, owners, everywhere=everywhere, also=also)

    def alternatives(self, code: str, *slugs: str) -> Iterator[Proposal]:
        """Other kernels for the step, as proposals of the remedy that has these slugs."""
        if self.silent:
            return
        failed = failed_kernel(self.replayable, self.exam, self.evidence, self.cause)
        if self.evidence.compiled and self.origin is not None:
            failed = replace(failed, module=self.origin.module)
        for each in alternatives(failed):
            if each.slug in slugs:
                yield Proposal(
                    code=code, slug=each.slug, change=each.change, make=each.make, safety=each.safety,
                    if_needed=each.if_needed, code_change=each.line,
                )  # fmt: skip

    @property
    def call(self) -> str:
        named = self.exam.named if self.exam is not None else None
        return named.call.strip("_") if named is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One change worth a trial. `lasting` keeps it in force in the steps after; `rewind` starts some steps before,
    `from_start` at the very first step, and is not tried where that is not kept. With `if_needed` it is tried only
    where none before it with the same slug has held."""

    code: str
    slug: str
    change: str
    make: Callable[[], ReplayChange]
    safety: str = "behavioural"
    lasting: bool = True
    rewind: bool = False
    from_start: bool = False
    if_needed: bool = False
    code_change: str | None = None
    in_proportion: bool = False
    """Whether it is verified only if the loss is not orders of magnitude from that of the healthy rows."""
    own_line: bool = False
    """Whether it is the user's own line that was tried so; else it is an example."""
