"""What a diagnosis looks like on a terminal: each thing once, whole words, and nothing claimed that was not tried."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from made_runs import an_overflow
from rich.console import Console

from steadygrad.records import Diagnosis, Finding, Incident, Kind, Remedy, Severity, Trial, without_skipping
from steadygrad.records.diagnosis import silent_diagnosis
from steadygrad.reporters.html.incident_view import incident_view
from steadygrad.reporters.run_data.run_summary import one_line
from steadygrad.reporters.terminal.console import shown
from steadygrad.reporters.terminal.print_diagnosis import print_diagnosis, steps_not_looked_at
from steadygrad.reporters.terminal.print_incidents import batch_in_words, print_incidents

SKIP = Trial(
    remedy=Remedy(code="RX110", slug="skip_batch", change="no update for a batch whose loss is not finite"),
    finite=True, verified=True, steps_followed=3, verdict="holds",
)  # fmt: skip
RESTORE = replace(
    SKIP,
    remedy=Remedy(
        code="RX153", slug="restore_buffers", change="the batch skipped, and the buffers restored to before it",
        safety="exact",
    ),
)  # fmt: skip
FLOOR = replace(
    SKIP,
    remedy=Remedy(code="RX130", slug="eps", change="a floor under p", safety="close", code_change="y = f(p)"),
    loss_gap=0.0, gradient_cosine=1.0,
)  # fmt: skip


def printed(incident: Incident, **options: Any) -> str:
    screen = io.StringIO()
    print_diagnosis(Console(file=screen, width=160, color_system=None), incident, **options)
    return screen.getvalue()


def an_incident(**changes: Any) -> Incident:
    incident = an_overflow(1, 44)
    assert incident.diagnosis is not None
    return replace(incident, diagnosis=replace(incident.diagnosis, **changes))


def test_the_samples_of_an_incident_of_several_steps_are_those_of_the_step_that_was_looked_at() -> None:
    incident = replace(an_incident(rows=(14,), sample_ids=("301",), step=44), last_step=45)
    assert steps_not_looked_at(incident) == "step 44; step 45 was refused as well and not looked at"
    assert "step 45 was refused as well and not looked at" in printed(incident)
    assert batch_in_words(incident) == "sample 301 (step 44)"
    assert steps_not_looked_at(an_incident(step=44)) == ""


def test_the_guilty_samples_are_named_where_the_whole_batch_was_cut_off() -> None:
    incident = replace(an_incident(rows=(14,), sample_ids=("301",)), batch_key="samples " + ", ".join(["7"] * 40))
    screen = io.StringIO()
    print_incidents(Console(file=screen, width=160, color_system=None), "run", [incident])
    assert "sample 301" in screen.getvalue()
    many = replace(
        incident, diagnosis=replace(incident.diagnosis, rows=tuple(range(11)), sample_ids=tuple("abcdefghijk"))
    )
    assert batch_in_words(many) == "samples a, b, c, d, e, f, g, h and 3 more"
    assert "(sample ids a, b, c, d, e, f, g, h and 3 more)" in printed(many)
    unnamed = replace(incident, batch_key="batch-7", diagnosis=replace(incident.diagnosis, sample_ids=()))
    assert batch_in_words(unnamed) == "row 14 of batch-7"
    assert batch_in_words(replace(incident, diagnosis=None, batch_key="batch-7")) == "batch-7"


def test_skipping_comes_last_and_is_called_what_it_is() -> None:
    found = an_incident(trials=(RESTORE, SKIP, FLOOR))
    assert found.diagnosis is not None
    assert found.diagnosis.remedies[0] is FLOOR
    assert found.diagnosis.remedy_in_words == "verified remedy: a floor under p"
    alone = an_incident(trials=(RESTORE, SKIP))
    assert "skipping the batch is enough for this one" in one_line(alone)
    assert "verified remedy" not in one_line(alone)
    text = printed(alone)
    assert "skipping the batch is enough for this one; nothing else was verified" in text
    assert "least change" not in text


def test_skipping_is_not_enough_where_the_next_batch_fails_too() -> None:
    found = an_incident(trials=(RESTORE, SKIP)).diagnosis
    assert found is not None
    assert without_skipping(found).remedies == ()
    assert without_skipping(found).remedy_in_words is None


def test_numbers_over_a_few_rows_are_not_shown_as_a_proof() -> None:
    text = printed(an_incident(trials=(replace(FLOOR, rows_compared=5, num_rows=16),)))
    assert "0.0 %" not in text
    assert "1.0000" not in text
    assert "the 5 of 16 rows that are healthy without a remedy" in text
    most = printed(an_incident(trials=(replace(FLOOR, rows_compared=14, num_rows=16),)))
    assert "0.0 %" in most
    assert "the 14 of 16 rows" in most


def test_a_trial_that_was_not_tried_has_no_answer() -> None:
    untried = replace(SKIP, finite=False, verified=False, verdict="not tried: no other batch is kept to follow it on")
    line = next(line for line in printed(an_incident(trials=(untried,))).splitlines() if "RX110" in line)
    assert " no " not in line.replace("no update", "").replace("no other", "")
    assert " - " in line


@pytest.mark.parametrize("own_line", [True, False])
def test_a_fix_is_only_code_and_an_example_is_not_called_tried(own_line: bool) -> None:
    remedy = replace(FLOOR.remedy, code_change="p = g(p)\ny = f(p)", own_line=own_line)
    lines = printed(an_incident(trials=(replace(FLOOR, remedy=remedy),))).splitlines()
    place = next(number for number, line in enumerate(lines) if line.strip().startswith("fix"))
    assert [line.split("fix")[-1].strip() for line in lines[place : place + 2]] == ["p = g(p)", "y = f(p)"]
    said = lines[place + 2].strip()
    assert said == (
        "(tried on this step: finite, loss moved 0.0 %)"
        if own_line
        else "(an example; tried on this step was: a floor under p)"
    )


def test_an_incident_that_was_not_diagnosed_says_what_to_do_next() -> None:
    incident = replace(an_overflow(1, 7), diagnosis=None)
    assert "steady run gan.py" in printed(incident, next_step="steady run gan.py")
    like = Kind(an_overflow(2, 9), (incident,))
    assert "steady run" not in printed(incident, kind=like, next_step="steady run gan.py")


def test_a_silent_error_is_said_once() -> None:
    finding = Finding(
        code="SY450", slug="target_leak", severity=Severity.WARNING, step=1, subject="predictions",
        detail="the target is in the input",
    )  # fmt: skip
    incident = Incident(
        number=1, first_step=1, last_step=1, symptom="silent", headline=finding.detail, findings=(finding,),
        diagnosis=silent_diagnosis(finding),
    )  # fmt: skip
    assert printed(incident).count("the target is in the input") == 1
    view = incident_view(incident, Kind(incident, (incident,)), anchor="a", run_path="run", root="/")
    assert (view["subtitle"], view["findings"]) == ("", [])
    assert view["diagnosis"]["origin"]["label"] == "about"
    assert (view["diagnosis"]["reproduced"], view["diagnosis"]["confidence"]) == ("", None)


def test_a_verified_remedy_with_a_loss_out_of_proportion_says_so_and_stands_behind_the_others() -> None:
    large = replace(FLOOR, verdict="holds, but the loss is 1e+06 where it is about 8 otherwise")
    rows = replace(FLOOR, remedy=Remedy(code="RX111", slug="drop_rows", change="rows 2 left out"))
    found = an_incident(trials=(large, SKIP, rows))
    assert found.diagnosis is not None
    assert [trial.remedy.slug for trial in found.diagnosis.remedies] == ["drop_rows", "eps", "skip_batch"]
    assert "but the loss is 1e+06" in printed(found)


def test_a_text_that_is_cut_ends_with_a_whole_word() -> None:
    assert (
        shown("before it is changed, so the cause is still there", limit=40)
        == "before it is changed, so the cause is..."
    )
    assert shown("a" * 50, limit=40) == "a" * 37 + "..."
    assert shown("short", limit=40) == "short"


def test_a_diagnosis_of_an_older_version_can_still_be_read() -> None:
    from steadygrad.records.plain_data import from_plain, to_plain

    plain = to_plain(an_incident(trials=(FLOOR,)).diagnosis)
    del plain["step"], plain["trials"][0]["rows_compared"], plain["trials"][0]["num_rows"]
    del plain["trials"][0]["remedy"]["own_line"]
    assert from_plain(Diagnosis, plain).remedies[0].remedy.slug == "eps"
