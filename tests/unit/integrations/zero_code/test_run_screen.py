"""The closing screen says what happened in plain sentences, and claims nothing that was not checked."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from steadygrad.integrations.zero_code.launch.summary import headline, outcome, print_outcome
from steadygrad.integrations.zero_code.launch.supervise import Ended
from steadygrad.journal.incident_files import write_incident
from steadygrad.journal.run_directory import RunDirectory
from steadygrad.records import Action, Decision, Incident

HEALTHY = {
    "torch": True, "guarded": True, "rank": 0, "steps": 320, "applied": 320, "skipped": 0, "overflows": 0,
    "rolled_back": 0, "backwards": 320, "not_checked": [], "final_state": "finite", "trainings": 1,
    "run_dir": "runs/x",
}  # fmt: skip


def screen(*notes: dict[str, Any], incidents: list[Incident] | None = None, code: int = 0) -> dict[str, Any]:
    found = outcome(Ended(code=code, run_dir=Path("nowhere"), notes=list(notes)))
    return {**found, "incidents": incidents or []}


def refused(step: int, last: int | None = None, **decision: Any) -> Incident:
    kind = Decision(step=step, **{"actions": (Action.SKIP,), **decision})
    return Incident(
        number=1, first_step=step, last_step=last if last is not None else step, symptom="nan_loss", decision=kind
    )


def test_a_run_with_nothing_wrong_is_one_line() -> None:
    assert headline(screen(HEALTHY)) == "320 updates, none refused. The weights at the end are finite."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"final_state": None}, "320 updates, none refused. The weights at the end were not checked."),
        (
            {"final_state": "finite in 1 of 3 trainings", "trainings": 3},
            "320 updates, none refused in 3 trainings. The weights at the end are finite in 1 of 3 trainings; "
            "the others had ended and were not checked.",
        ),
        (
            {"final_state": "non-finite: head.weight, head.bias"},
            "320 updates, none refused. The weights at the end are not finite: head.weight, head.bias.",
        ),
    ],
)
def test_nothing_is_claimed_that_was_not_checked(change: dict[str, Any], said: str) -> None:
    assert headline(screen({**HEALTHY, **change})) == said


def test_a_process_that_does_not_know_the_fields_counts_as_not_checked() -> None:
    old = {key: HEALTHY[key] for key in ("torch", "guarded", "steps", "applied", "skipped", "run_dir")}
    found = screen(old)
    assert found["final_state"] == "not checked"
    assert "not checked" in headline(found)


def test_one_bad_process_among_good_ones_decides_what_is_said_of_the_end() -> None:
    bad = {**HEALTHY, "rank": 1, "final_state": "non-finite: w"}
    assert screen(HEALTHY, bad)["final_state"] == "non-finite: w"
    assert screen(HEALTHY, {**HEALTHY, "rank": 1, "final_state": None})["final_state"] == "not checked"


@pytest.mark.parametrize(
    ("count", "incidents", "said"),
    [
        (1, [refused(10)], "1 refused (step 10). The weights are finite, and as if that batch had"),
        (
            4,
            [refused(3), refused(7, 9)],
            "4 refused (steps 3, 7-9). The weights are finite, and as if those batches had",
        ),
        (
            30,
            [refused(3), refused(7, 9)],
            "30 refused (first: step 3). The weights are finite, and as if those batches had",
        ),
    ],
)
def test_a_refusal_names_its_steps(count: int, incidents: list[Incident], said: str) -> None:
    note = {**HEALTHY, "applied": 320 - count, "skipped": count}
    assert headline(screen(note, incidents=incidents)) == f"{320 - count} of 320 updates applied, {said} been left out."


def test_a_run_whose_refused_batch_left_something_is_not_called_as_if_the_batch_had_been_left_out() -> None:
    left = "a refused batch changed key.weight, which may not be as before it"
    note = {**HEALTHY, "applied": 319, "skipped": 1, "notices": {"not_restored": left}}
    found = screen(note, incidents=[refused(10)])
    assert headline(found) == "319 of 320 updates applied, 1 refused (step 10). The weights at the end are finite."
    stream = io.StringIO()
    print_outcome(Console(file=stream, width=200), found)
    assert left in stream.getvalue()


def test_a_halted_run_has_the_exit_code_of_its_process_and_has_ended_early() -> None:
    told = screen({**HEALTHY, "halted": True}, code=1)
    assert (told["exit_code"], told["ended"], told["ended_early"]) == (23, "halted", True)
    told = screen(HEALTHY)
    assert (told["exit_code"], told["ended"], told["ended_early"]) == (0, "finished", False)


def test_a_halt_names_step_and_reason_and_not_the_state_of_weights_that_were_not_checked() -> None:
    note = {**HEALTHY, "steps": 10, "applied": 0, "skipped": 10, "halted": True, "final_state": None}
    stop = refused(0, 9, actions=(Action.HALT,), reason="10 bad steps in a row (limit 10)")
    assert headline(screen(note, incidents=[stop])) == (
        "halted at step 0: 10 bad steps in a row (limit 10). 0 of 10 updates applied, 10 refused (steps 0-9). "
        "The weights at the end were not checked."
    )


def test_what_the_loop_and_the_loss_scale_dropped_is_counted_apart() -> None:
    note = {**HEALTHY, "applied": 315, "skipped": 5, "overflows": 5, "skipped_by_program": 2}
    said = "315 of 320 updates applied, 5 dropped by the loss scale, 2 skipped by the program. "
    said += "The weights at the end are finite."
    assert headline(screen(note)) == said


def test_what_was_not_checked_has_a_line_each() -> None:
    stream = io.StringIO()
    note = {**HEALTHY, "not_checked": ["weights updated inside backward"], "faults": {"journal": 1}}
    print_outcome(Console(file=stream, width=200), screen(note))
    text = stream.getvalue()
    assert "unchecked" in text
    assert "weights updated inside backward" in text
    assert "internal error of steadygrad: IE501 (journal); training went on" in text


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ([], "no Python process loaded steadygrad"),
        ([{"torch": False, "guarded": False}], "did not import torch"),
        ([{"torch": True, "guarded": False}], "could not be guarded"),
        ([{"torch": True, "guarded": True}], "Updates made in another way (torch.func, torch.autograd.grad, by hand)"),
        ([{"torch": True, "guarded": True, "backwards": 3}], "no update was checked: 3 backwards ran"),
    ],
)
def test_a_program_without_a_checked_update_is_never_called_untrained(notes: list[dict[str, Any]], said: str) -> None:
    sentence = headline(screen(*notes))
    assert said in sentence
    assert "trained" not in sentence


def test_incidents_of_an_earlier_run_into_the_same_folder_are_not_shown_as_this_ones(tmp_path: Path) -> None:
    run, folder = RunDirectory(tmp_path / "run"), tmp_path / "run"
    for number, at in ((1, 1000.0), (2, 2000.0)):
        write_incident(run, replace(refused(7), number=number, time=at))
    run.close()
    note = {**HEALTHY, "applied": 319, "skipped": 1, "run_dir": str(folder)}
    found = outcome(Ended(code=0, run_dir=folder, notes=[note], started=1500.0))
    assert [incident.number for incident in found["incidents"]] == [2]
    assert headline(found).startswith("319 of 320 updates applied, 1 refused (step 7).")


def test_an_option_of_ours_that_the_script_refused_is_said_to_belong_before_it() -> None:
    words = ("python", "train.py", "--run-dir=runs/x", "--lr", "1")
    note = {"torch": True, "guarded": True, "rank": 0, "ended": {"how": "exit"}}
    told = outcome(Ended(code=2, run_dir=Path("nowhere"), notes=[note], command=words))
    stream = io.StringIO()
    print_outcome(Console(file=stream, width=200), told)
    assert (
        "hint      --run-dir behind the script is the script's: for steady run, put --run-dir before"
        in stream.getvalue()
    )
    assert outcome(Ended(code=0, run_dir=Path("nowhere"), notes=[note], command=words))["misplaced_option"] is None
    assert outcome(Ended(code=2, run_dir=Path("nowhere"), notes=[note], command=words[:2]))["misplaced_option"] is None


def test_a_program_that_failed_before_any_backward_is_not_said_to_update_by_hand() -> None:
    note = {"torch": True, "guarded": True, "rank": 0}
    assert headline(screen(note, code=1)) == "nothing was checked: the program ended before its first backward()."
    assert "by hand" in headline(screen(note))
