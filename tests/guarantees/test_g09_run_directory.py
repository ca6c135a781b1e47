"""Guarantee 9: opening a run directory executes nothing, reads nothing outside it, and escapes all it shows."""

from __future__ import annotations

from pathlib import Path

from drivers import train
from registry import guarantee
from scenario import HOSTILE, Scenario
from typer.testing import CliRunner

from steadygrad.commands import make_app

HOSTILE_RUN = Scenario(faults={5: "nan_gradient"}, hostile_names=True)
SECRET = "the-secret-of-another-user"


def steady(*words: str) -> str:
    """What a verb prints, or the sentence that it refuses with."""
    answer = CliRunner().invoke(make_app(), list(words))
    return answer.output + str(answer.exception or "")


@guarantee("G9")
def test_a_run_written_here_is_shown_escaped_and_nothing_outside_it_is_read(entry: str, tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "page.html"
    found = train(entry, HOSTILE_RUN, run)
    assert found.incidents, found.message
    shown = steady("incidents", str(run)) + steady("diagnose", str(run))
    assert "\x1b" not in shown
    steady("report", str(run), "--output", str(page))
    assert HOSTILE.partition("\x1b")[0] not in page.read_text()
    outside = tmp_path / "outside.json"
    outside.write_text((run / "incidents" / "0001" / "incident.json").read_text().replace("grad", SECRET))
    (run / "incidents" / "0001" / "incident.json").unlink()
    (run / "incidents" / "0001" / "incident.json").symlink_to(outside)
    assert SECRET not in steady("incidents", str(run)) + steady("incidents", str(run), "--json")
