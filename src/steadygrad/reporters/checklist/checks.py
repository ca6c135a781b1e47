"""The checklist for after training: each line a pure function over what the run left behind.

A line is passed, failed, or open where nothing about it was recorded. Open is not passed and not failed; but where it
was asked for by name, the checklist as a whole is not passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from ...records.checks.scan import FileScan, ScanLevel, ScanReport, ScanVerdict
from ...records.errors import UsageError
from ..run_data.counted import are, counted, were
from ..run_data.run_summary import Counts, RunSummary
from ..run_data.step_columns import RankColumns
from ..terminal.console import amount, number

HEALTHY_SUCCESS = 0.90
ALARM_SUCCESS = 0.85
MIN_STEPS_FOR_TREND = 20
NOT_RECORDED = "not recorded: add it to RUN/metrics.json or pass --metrics FILE"
MEMORY_NOT_RECORDED = "not recorded: the run was written by an earlier version, or on a system without /proc"
MIN_MEMORY_SAMPLES = 12
MEMORY_GROWTH = 0.05
POSITIVE_METRICS = ("accuracy", "answer_rate")
_FINITE, _FELL = "the {} of every update is finite", "the loss fell"


class Mark(StrEnum):
    """What became of a line of the checklist."""

    PASS = "pass"
    FAIL = "fail"
    OPEN = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line: what was asked, what became of it, and the numbers behind it."""

    slug: str
    question: str
    mark: Mark
    detail: str
    asked: bool = False
    """Asked for by name: if it was not checked, the checklist is not passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """What a run left behind. `checkpoint` is the scan of its newest checkpoint and of whatever else was named;
    `no_checkpoint` says where there was none."""

    story: RunSummary
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    checkpoint: ScanReport | None = None
    no_checkpoint: str = "not known: no checkpoint was looked for; pass --model PATH to have one scanned"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What is asked beyond the usual list."""

    min_success: float = ALARM_SUCCESS
    max_norm: float | None = None
    max_memory: float | None = None
    above: Mapping[str, float] = field(default_factory=dict)
    falls: Sequence[str] = ()
    ignore: frozenset[str] = frozenset()


def checklist(evidence: RunEvidence, wishes: CheckOptions) -> list[Check]:
    """Every line, in the order a person would ask."""
    rows = evidence.story.rows
    assert rows is not None
    applied = rows.final("applied").astype(bool)
    loss, norm = rows.final("loss"), rows.final("grad_norm")
    steps = rows.final("step")
    if not rows.loss_recorded:
        unseen = "not recorded: a guard of the optimizer alone does not see the loss"
        about_loss = [
            Check(slug="loss_finite", question=_FINITE.format("loss"), mark=Mark.OPEN, detail=unseen),
            Check(slug="loss_fell", question=_FELL, mark=Mark.OPEN, detail=unseen),
        ]
    else:
        about_loss = [finite("loss_finite", "loss", steps, loss, applied), loss_fell(loss[applied])]
    found = [
        ended(evidence.story),
        about_loss[0],
        finite("gradient_finite", "gradient norm", steps, norm, applied),
        success(evidence.story.counts, wishes.min_success),
        about_loss[1],
        silent(evidence.story),
        weights(evidence.checkpoint, evidence.no_checkpoint),
        journal_whole(evidence.story),
    ]
    if wishes.max_norm is not None:
        found.append(norm_below(norm[applied], wishes.max_norm))
    if wishes.max_memory is not None:
        found += [memory_below(evidence.story.ranks, wishes.max_memory), memory_stable(evidence.story.ranks)]
    usual = {name: 0.0 for name in POSITIVE_METRICS if evidence.metrics.get(name)}
    wanted = usual | dict(wishes.above)
    found += [above(name, limit, evidence.metrics, asked=name in wishes.above) for name, limit in wanted.items()]
    found += [falls(name, evidence.metrics) for name in wishes.falls]
    slugs = [check.slug for check in found]
    if unknown := sorted(wishes.ignore.difference(slugs)):
        raise UsageError(f"--ignore {unknown[0]} is no line of this checklist: choose from {', '.join(slugs)}.")
    return [check for check in found if check.slug not in wishes.ignore]


def ended(story: RunSummary) -> Check:
    marks = {"ended": Mark.PASS if story.state.why_known else Mark.OPEN, "running": Mark.OPEN}
    mark = marks.get(story.state.word, Mark.FAIL)
    unseen = "" if story.state.code_known else "; no exception ended the program, and its exit code was not seen"
    return Check(slug="ended", question="training came to its end", mark=mark, detail=story.state.sentence + unseen)


def finite(slug: str, what: str, steps: Any, values: Any, applied: Any) -> Check:
    """Nothing that is not finite was trained on. What was refused is mentioned and does not count."""
    question = _FINITE.format(what)
    bad = ~np.isfinite(values)
    harmful = bad & applied
    if harmful.any():
        first = int(steps[harmful][0])
        count = int(harmful.sum())
        detail = f"{counted(count, 'update')} {were(count)} applied although it was not, the first at step {first:,}"
        return Check(slug=slug, question=question, mark=Mark.FAIL, detail=detail)
    if not applied.any():
        return Check(slug=slug, question=question, mark=Mark.OPEN, detail="no update was applied")
    detail = counted(int(applied.sum()), "update")
    if bad.any():
        count = int(bad.sum())
        detail += f"; {counted(count, 'step')} at which it was not {were(count)} refused"
    return Check(slug=slug, question=question, mark=Mark.PASS, detail=detail)


def success(counts: Counts, limit: float) -> Check:
    rate = counts.success_rate
    detail = f"{100 * rate:.1f} % of {counted(counts.due, 'step')} {were(counts.due)} applied"
    if counts.by_program:
        detail += f"; {counts.by_program:,} {were(counts.by_program)} skipped by the program"
    if limit <= rate < HEALTHY_SUCCESS:
        detail += f"; healthy is above {100 * HEALTHY_SUCCESS:.0f} %"
    mark = Mark.PASS if rate >= limit else Mark.FAIL
    return Check(
        slug="success_rate", question=f"at least {100 * limit:g} % of steps were applied", mark=mark, detail=detail
    )


def loss_fell(losses: Any) -> Check:
    """The median of the last tenth against that of the first: single batches are too noisy to compare."""
    question = _FELL
    losses = losses[np.isfinite(losses)]
    if len(losses) < MIN_STEPS_FOR_TREND:
        few = f"{counted(len(losses), 'update')} {are(len(losses))} too few to tell"
        detail = f"{few}; at least {MIN_STEPS_FOR_TREND} are needed"
        return Check(slug="loss_fell", question=question, mark=Mark.OPEN, detail=detail)
    tenth = max(5, len(losses) // 10)
    first, last = float(np.median(losses[:tenth])), float(np.median(losses[-tenth:]))
    detail = f"from {number(first)} to {number(last)}, medians of the first and last {tenth:,} updates"
    mark = Mark.PASS if last < first else Mark.FAIL
    return Check(slug="loss_fell", question=question, mark=mark, detail=detail)


def silent(story: RunSummary) -> Check:
    """What is wrong although every number is finite. What is checked for depends on the entry point."""
    found = story.silent
    mark = Mark.FAIL if found else Mark.PASS
    detail = ", ".join(found) + ": steady incidents has the details" if found else "none of those that were looked for"
    return Check(slug="no_silent_problem", question="no silent problem was found", mark=mark, detail=detail)


def weights(report: ScanReport | None, why_none: str) -> Check:
    question = "the newest checkpoint holds no bad number"
    if report is None:
        return Check(slug="weights_finite", question=question, mark=Mark.OPEN, detail=why_none)
    count = sum(file.num_tensors for file in report.files)
    names = ", ".join(file.path for file in report.files[:3])
    if report.verdict is ScanVerdict.CLEAN:
        return Check(slug="weights_finite", question=question, mark=Mark.PASS, detail=f"{count:,} tensors in {names}")
    first = next(file for file in report.files if file.verdict is report.verdict)
    why = first.problems[0] if report.verdict is ScanVerdict.UNREADABLE else _finding(first)
    return Check(slug="weights_finite", question=question, mark=Mark.FAIL, detail=why)


def _finding(file: FileScan) -> str:
    finding = next(finding for finding in file.findings if finding.level is ScanLevel.POISON)
    return f"{file.path}, {finding.tensor}: {finding.detail}"


def journal_whole(story: RunSummary) -> Check:
    """Whether all that the lines above rest on was kept and could be read."""
    degraded = [event for event in story.events if event.kind == "journal_degraded"]
    wrong = story.missing
    if degraded:
        stretches = counted(len(degraded), "stretch", "stretches")
        wrong.append(f"the disk failed the journal in {stretches}, and some records may be missing")
    mark = Mark.FAIL if wrong else Mark.OPEN if story.earlier_run else Mark.PASS
    whole = story.earlier_run or f"{counted(story.counts.steps, 'step')}, nothing missing"
    detail = "; ".join(wrong) if wrong else whole
    return Check(slug="journal_whole", question="the run's own record is whole", mark=mark, detail=detail)


def norm_below(norms: Any, limit: float) -> Check:
    over = int((norms > limit).sum())
    largest = float(norms[np.isfinite(norms)].max(initial=0.0))
    detail = f"the largest is {number(largest)}" + (f", {over:,} of {len(norms):,} updates are above" if over else "")
    question = f"every gradient norm is at most {number(limit)} before clipping"
    return Check(slug="norm_below", question=question, mark=Mark.FAIL if over else Mark.PASS, detail=detail)


def memory_below(ranks: Sequence[RankColumns], limit: float) -> Check:
    """The most memory of any rank: of its fullest GPU, or of the process where it has none."""
    question = f"memory stayed at most {amount(limit)}"
    samples = [(what, values) for what, _, values in (rows.memory(peak=True) for rows in ranks) if len(values)]
    if not samples:
        return Check(slug="memory_below", question=question, mark=Mark.OPEN, detail=MEMORY_NOT_RECORDED, asked=True)
    what, values = max(samples, key=lambda sample: float(sample[1].max()))
    most = float(values.max())
    detail = f"the most {what} memory is {amount(most)}, in {_samples(len(values))}"
    return Check(slug="memory_below", question=question, mark=Mark.FAIL if most > limit else Mark.PASS, detail=detail)


def memory_stable(ranks: Sequence[RankColumns]) -> Check:
    """The memory in use in the last quarter of the run against that of the second: the first is still growing."""
    question = "memory is stable"
    worst: tuple[float, str] | None = None
    for what, _, values in (rows.memory() for rows in ranks):
        quarters = np.array_split(values, 4)
        if len(values) < MIN_MEMORY_SAMPLES:
            continue
        early, late = float(quarters[1].max()), float(quarters[3].max())
        detail = f"{what} memory {amount(early)} in the second quarter of the run, {amount(late)} in the last"
        worst = max(worst or (0.0, ""), (late / max(early, 1.0), detail))
    if worst is None:
        count = max((len(rows.memory()[2]) for rows in ranks), default=0)
        few = f"{_samples(count)} {are(count)} too few to tell; at least {MIN_MEMORY_SAMPLES} are needed"
        return Check(slug="memory_stable", question=question, mark=Mark.OPEN, detail=few)
    mark = Mark.FAIL if worst[0] > 1 + MEMORY_GROWTH else Mark.PASS
    return Check(slug="memory_stable", question=question, mark=mark, detail=worst[1])


def _samples(count: int) -> str:
    return counted(count, "sample")


def above(name: str, limit: float, metrics: Mapping[str, Sequence[float]], *, asked: bool) -> Check:
    question = f"{name} is above {number(limit)}"
    values = metrics.get(name)
    if not values:
        return Check(slug=name, question=question, mark=Mark.OPEN, detail=NOT_RECORDED, asked=asked)
    mark = Mark.PASS if values[-1] > limit else Mark.FAIL
    return Check(slug=name, question=question, mark=mark, detail=f"it is {number(values[-1])}")


def falls(name: str, metrics: Mapping[str, Sequence[float]]) -> Check:
    question, slug = f"{name} fell", f"{name}_fell"
    values = [value for value in metrics.get(name, ()) if np.isfinite(value)]
    if len(values) < 2:
        detail = f"only one value of it was recorded, {number(values[0])}" if values else NOT_RECORDED
        return Check(slug=slug, question=question, mark=Mark.OPEN, detail=detail, asked=True)
    mark = Mark.PASS if values[-1] < values[0] else Mark.FAIL
    return Check(slug=slug, question=question, mark=mark, detail=f"from {number(values[0])} to {number(values[-1])}")
