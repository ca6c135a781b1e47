"""What a run is said to be: counted by batches, judged by what was recorded, its incidents grouped by kind."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import an_overflow

from steadygrad.journal import Journal
from steadygrad.records import Action, Decision, Incident, StepRecord, kinds_of
from steadygrad.reporters.checklist.checks import CheckOptions, Mark, RunEvidence, checklist
from steadygrad.reporters.html.charts import chart_data
from steadygrad.reporters.html.incident_view import incident_view
from steadygrad.reporters.html.lead_up import NormsBefore, lead_up
from steadygrad.reporters.html.write import write_report
from steadygrad.reporters.run_data.follow_run import RunFollower
from steadygrad.reporters.run_data.run_summary import RunSummary, one_line, summarise


def story_of(run: Path) -> RunSummary:
    follower = RunFollower(run)
    follower.poll()
    return summarise(run, follower)


def write(run: Path, rows: list[tuple[int, float, bool]], *, state: str | None = "finite") -> Path:
    """(step, loss, applied) in the order they were settled; at the end what the guard found the weights to be."""
    with Journal(run) as journal:
        for step, loss, applied in rows:
            norm = 1.0 if math.isfinite(loss) else math.nan
            journal.step(
                StepRecord(run="r", step=step, loss=loss, grad_norm=norm, applied=applied, time=time.time() - 60)
            )
        if state is not None:
            journal.event("final_state", state=state)
    return run


def a_halt(step: int, reason: str, *, first: int) -> Incident:
    decision = Decision(step=step, actions=(Action.SKIP, Action.HALT), reason=reason)
    return replace(an_overflow(1, first, diagnosed=False), last_step=step, decision=decision)


def add(run: Path, *incidents: Incident) -> Path:
    with Journal(run) as journal:
        for incident in incidents:
            journal.incident(incident)
    return run


# -- attempts


ROLLED_BACK = [(0, 8.0, True), (1, 4.0, True), (2, 3.0, True), (3, math.nan, False), (1, 5.0, True), (2, 2.0, True),
               (3, 1.5, True), (4, 1.0, True)]  # fmt: skip


def test_a_batch_that_was_run_again_counts_once_by_its_last_attempt(tmp_path: Path) -> None:
    story = story_of(write(tmp_path / "run", ROLLED_BACK))
    assert story.rows is not None
    assert story.rows.final("step").tolist() == [0, 1, 2, 3, 4]
    assert story.rows.final("loss").tolist() == [8.0, 5.0, 2.0, 1.5, 1.0]
    assert (story.counts.steps, story.counts.applied, story.counts.refused, story.counts.run_again) == (5, 5, 0, 3)
    assert story.counts.success_rate == 1.0


def test_steps_that_were_rolled_back_and_never_reached_again_do_not_count(tmp_path: Path) -> None:
    story = story_of(write(tmp_path / "run", ROLLED_BACK[:5]))
    assert story.rows is not None
    assert story.rows.final("step").tolist() == [0, 1]
    assert story.counts.refused == 0


def test_earlier_attempts_are_numbered_and_drawn_apart_from_the_last(tmp_path: Path) -> None:
    again = [(2, 2.2, True), (3, 1.4, True)]
    story = story_of(write(tmp_path / "run", [*ROLLED_BACK, *again]))
    drawn = chart_data([story], {})["runs"][0]
    assert drawn["curves"]["loss"]["x"] == [0, 1, 2, 3]
    assert drawn["curves"]["loss"]["mid"] == [8.0, 5.0, 2.2, 1.4]
    earlier = {
        line["attempt"]: dict(zip(line["x"], line["mid"], strict=True)) for line in drawn["curves"]["loss"]["earlier"]
    }
    assert earlier[1] == {1: 4.0, 2: 3.0, 3: None, 4: 1.0}
    assert earlier[2] == {2: 2.0, 3: 1.5}


def test_the_line_of_an_earlier_attempt_ends_where_its_steps_do(tmp_path: Path) -> None:
    rows = [(step, 1.0, True) for step in (0, 1, 2, 1, 2, 3, 4, 5, 6, 5, 6, 7)]
    drawn = chart_data([story_of(write(tmp_path / "run", rows))], {})["runs"][0]
    (line,) = drawn["curves"]["loss"]["earlier"]
    assert list(zip(line["x"], line["mid"], strict=True)) == [(1, 1.0), (2, 1.0), (3, None), (5, 1.0), (6, 1.0)]


def test_the_steps_before_an_incident_are_those_of_the_same_attempt(tmp_path: Path) -> None:
    story = story_of(write(tmp_path / "run", ROLLED_BACK))
    assert story.rows is not None
    before = lead_up(an_overflow(1, 3), story.rows, NormsBefore([]))
    assert [(step["step"], step["loss"], step["refused"]) for step in before["steps"]] == [
        (0, "8", False), (1, "4", False), (2, "3", False), (3, "nan", True),
    ]  # fmt: skip


# -- the verdict


def test_the_verdict_says_how_many_were_refused_and_that_the_weights_are_clean(tmp_path: Path) -> None:
    run = add(write(tmp_path / "run", [(0, 1.0, True), (1, math.nan, False), (2, 1.0, True)]), an_overflow(1, 1))
    assert story_of(run).verdict == "1 of 3 updates refused (loss NaN). The weights are clean."
    assert story_of(run).headline.endswith(
        "Cause: matmul of finite float16 numbers left the range of float16 in layers.1.attn. "
        "Verified remedy: layers.1.attn in float32."
    )


def test_weights_that_were_not_looked_at_are_not_called_clean(tmp_path: Path) -> None:
    rows = [(0, 1.0, True), (1, math.nan, False), (2, 1.0, True)]
    run = add(write(tmp_path / "run", rows, state=None), an_overflow(1, 1))
    assert story_of(run).verdict == "1 of 3 updates refused (loss NaN). No update that is not finite was applied."


def test_a_check_from_before_the_last_step_says_nothing_of_the_weights(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [(0, 1.0, True)])
    with Journal(run) as journal:
        journal.step(StepRecord(run="r", step=1, loss=1.0, grad_norm=1.0, applied=True, time=time.time() + 60))
    assert story_of(run).verdict == "All 2 updates applied."


def test_bad_updates_that_were_applied_are_the_verdict(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [(0, 1.0, True), (1, math.nan, True)], state="non-finite: head.weight")
    assert story_of(run).verdict == "All 2 updates applied. The weights at the end are not finite: head.weight."
    run = write(tmp_path / "other", [(0, 1.0, True), (1, math.nan, True)])
    assert story_of(run).verdict.endswith("1 update was applied although not finite: check the weights.")


def test_a_halted_run_says_where_and_why_first(tmp_path: Path) -> None:
    rows = [(0, 1.0, True), (1, math.nan, False), (2, math.nan, False)]
    halt = a_halt(2, "2 bad steps in a row (limit 2): the loss is nan", first=1)
    verdict = story_of(add(write(tmp_path / "run", rows), halt)).verdict
    assert verdict == (
        "Halted at step 2: 2 bad steps in a row (limit 2). 2 of 3 updates refused (loss NaN). The weights are clean."
    )


def test_rollbacks_are_counted_beside_the_refused(tmp_path: Path) -> None:
    decision = Decision(step=3, actions=(Action.ROLLBACK,), reason="rolled back")
    run = add(write(tmp_path / "run", ROLLED_BACK), replace(an_overflow(1, 3), decision=decision))
    assert story_of(run).verdict == "All 5 updates applied, rolled back once. The weights are clean."


# -- kinds


def test_an_undiagnosed_incident_is_of_the_kind_that_was_diagnosed_before_it() -> None:
    incidents = [an_overflow(number, 10 * number, diagnosed=number <= 2) for number in (1, 2, 3, 4)]
    (kind,) = kinds_of(incidents)
    assert kind.best is incidents[0]
    assert [incident.number for incident in kind.incidents] == [1, 2, 3, 4]
    assert one_line(incidents[3], kind).startswith("same kind as incident 1: matmul of finite float16")


def test_another_place_is_another_kind_and_an_undiagnosed_symptom_stays_alone() -> None:
    incidents = [
        an_overflow(1, 10), an_overflow(2, 20, module="layers.7.mlp"),
        replace(an_overflow(3, 30, diagnosed=False), symptom="grad_spike"), an_overflow(4, 40, diagnosed=False),
    ]  # fmt: skip
    assert [sorted(kind.numbers) for kind in kinds_of(incidents)] == [[1], [2, 4], [3]]
    assert one_line(incidents[2], kinds_of(incidents)[2]) == "not diagnosed"


def test_the_incident_with_a_remedy_is_the_one_to_read() -> None:
    first, second = an_overflow(1, 10), an_overflow(2, 20)
    assert first.diagnosis is not None
    bare = replace(first, diagnosis=replace(first.diagnosis, trials=()))
    (kind,) = kinds_of([bare, second])
    assert kind.best is second


def test_a_report_shows_one_line_a_kind_with_its_steps(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [(step, 1.0, step % 10 != 0) for step in range(1, 45)])
    add(run, *(an_overflow(number, 10 * number, diagnosed=number < 2) for number in (1, 2, 3, 4)))
    write_report([run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    body = page[: page.index('<script type="application/json"')]
    assert body.count('<details class="panel incident"') == 1
    assert all(f">{step}</button>" in body for step in (10, 20, 30, 40))
    assert "steps 20, 30, 40" in body
    assert "not diagnosed" not in body
    assert "Rows 3, 5 of the batch = samples 1203, 88" in body


def test_headroom_is_a_power_of_two_and_hidden_when_ample() -> None:
    incident = an_overflow(1, 10)
    view = incident_view(incident, kinds_of([incident])[0], anchor="a", run_path="run", root="/nowhere")
    scores, weights, grown = view["diagnosis"]["origin"]["digests"]
    assert scores["headroom"] == "2^0 before overflow"
    assert weights["headroom"] == "2^14 before overflow"
    assert grown["headroom"] == "not finite"
    assert incident.diagnosis is not None
    assert incident.diagnosis.origin is not None
    wide = replace(incident.diagnosis.origin.inputs[1], dtype="float32")
    origin = replace(incident.diagnosis.origin, inputs=(wide,))
    ample = replace(incident, diagnosis=replace(incident.diagnosis, origin=origin))
    view = incident_view(ample, kinds_of([ample])[0], anchor="a", run_path="run", root="/nowhere")
    assert view["diagnosis"]["origin"]["digests"][0]["headroom"] is None


@pytest.mark.parametrize("name", ["charts.js", "heat.js", "marks.js"])
def test_fonts_of_the_charts_are_whole_pixels(name: str) -> None:
    import re

    from steadygrad.reporters.html import embed

    text = str(embed.static(name))
    assert not re.search(r"\d\.\d+px", text)


# -- two runs in one directory


def test_a_run_written_over_an_earlier_one_is_told_alone_and_the_earlier_is_mentioned(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for first in (1, 2):
        with Journal(run) as journal:
            for step in range(6 - first):
                record = StepRecord(run="r", step=step, loss=1.0, grad_norm=1.0, applied=step > 0, time=time.time())
                journal.step(record)
            incident = replace(an_overflow(journal.next_incident(), 0, diagnosed=False), time=time.time())
            journal.incident(incident)
    story = story_of(run)
    assert (story.counts.steps, [incident.number for incident in story.incidents]) == (4, [2])
    assert story.notes == [story.earlier_run]
    assert "1 incident of the earlier is in `steady incidents` only" in story.earlier_run
    line = next(line for line in checklist(RunEvidence(story=story), CheckOptions()) if line.slug == "journal_whole")
    assert (line.mark, line.detail) == (Mark.OPEN, story.earlier_run)


def test_a_resumed_run_is_one_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for steps in (range(6), range(4, 9)):
        with Journal(run, resumes=True) as journal:
            for step in steps:
                journal.step(StepRecord(run="r", step=step, loss=1.0, grad_norm=1.0, applied=True, time=time.time()))
    story = story_of(run)
    assert (story.counts.steps, story.earlier_run, story.notes) == (9, "", [])
