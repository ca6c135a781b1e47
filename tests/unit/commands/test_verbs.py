"""The light verbs: what they print, what they exit with, and what they must not import."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from steadygrad.commands import main, make_app, verbs
from steadygrad.journal import Journal
from steadygrad.records import (
    Action,
    Cause,
    Decision,
    Diagnosis,
    Finding,
    Incident,
    Origin,
    Remedy,
    Severity,
    TensorDigest,
    Trial,
    rules,
)
from steadygrad.records.errors import TrainingHalted

Call = Callable[..., tuple[int, str, str]]
HOSTILE = "layers.0\x1b[2J\x07\u202egnp.\u2028exe"


def steady(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Run the command in this process: exit code, output, errors."""
    monkeypatch.setattr(sys, "argv", ["steady", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0 if code is None else 1), printed.out, printed.err


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *arguments: steady(capsys, monkeypatch, *arguments)


def an_incident(number: int = 1, **changes: object) -> Incident:
    finding = Finding(
        code="SY101", slug="non_finite_loss", severity=Severity.FATAL, step=7, evidence={"loss": math.nan}
    )
    decision = Decision(step=7, actions=(Action.SKIP, Action.SCALE_LR), findings=(finding,), reason="batch skipped")
    fields = {
        "number": number, "first_step": 7, "last_step": 8, "symptom": "nan_loss", "headline": "the loss is nan",
        "findings": (finding,), "decision": decision, "batch_key": "batch-7",
    }  # fmt: skip
    return Incident(**(fields | changes))  # type: ignore[arg-type]


def a_diagnosis() -> Diagnosis:
    worked = Remedy(code="RX130", slug="eps", change="a floor under the divisor")
    failed = Remedy(code="RX120", slug="clip", change="gradient norm clipped")
    origin = Origin(
        phase="loss", op="div", module=None, source="train.py:88", code_line="    x = a / b",
        inputs=(TensorDigest(name="b", shape=(4,), dtype="float32", absmax=2.5, num_zero=1),),
    )  # fmt: skip
    return Diagnosis(
        symptom="nan_loss", phase="loss", cause=Cause(code="DX201", slug="zero_division"), origin=origin,
        rows=(2,), sample_ids=("10233",), reproduced=(3, 3), because="div by an exact zero",
        trials=(
            Trial(remedy=failed, finite=False, verdict="the loss is still not finite"),
            Trial(remedy=worked, finite=True, verified=True, loss_gap=0.0, gradient_cosine=1.0),
        ),
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Journal(tmp_path / "run") as journal:
        assert journal.incident(an_incident(1))
        assert journal.incident(an_incident(2, first_step=40, last_step=40, headline=HOSTILE, batch_key=HOSTILE))
        assert journal.event("vitals", code="SY401", step=12, detail=f"updates of {HOSTILE} are lost")
    return tmp_path / "run"


# -- the command as a whole


def test_every_module_here_is_a_verb_with_help_from_its_docstring(call: Call) -> None:
    assert {"demo", "explain", "incidents"} <= set(verbs())
    code, out, _ = call("--help")
    assert code == 0
    for verb in verbs():
        assert f"  {verb} " in out
        code, page, _ = call(verb, "--help")
        assert code == 0
        callback = next(c.callback for c in make_app().registered_commands if c.name == verb)
        assert callback is not None
        assert callback.__doc__ is not None
        assert callback.__doc__.split()[0] in page
        assert "Exit codes" in page
        assert "--json" in page


def test_help_lists_every_verb_in_three_groups_with_lines_that_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = steady(capsys, monkeypatch, "--help")
    groups = [out.index(f"{title}:") for title in ("Before training", "During training", "After training")]
    assert groups == sorted(groups)
    assert all(f"\n  {verb} " in out for verb in verbs())
    assert "..." not in out.partition("Before training")[2]
    assert max(len(line) for line in out.splitlines()) <= 80


def test_a_mistake_is_one_sentence_on_stderr_and_exit_code_2(call: Call) -> None:
    code, out, err = call("incidents", "no/such/run")
    assert (code, out) == (2, "")
    assert err == "steady: no/such/run does not exist: pass the run_dir a guard wrote to.\n"


def test_an_unknown_verb_exits_with_2(call: Call) -> None:
    assert call("frobnicate")[0] == 2


def test_a_hostile_path_cannot_move_the_terminal(call: Call) -> None:
    code, _, err = call("incidents", "evil\x1b[2Jname")
    assert code == 2
    assert "\x1b" not in err
    assert r"evil\x1b[2Jname" in err


def test_version_is_the_packages(call: Call) -> None:
    import steadygrad

    assert call("--version") == (0, f"steadygrad {steadygrad.__version__}\n", "")


def test_a_halted_run_is_a_sentence_and_exit_code_23(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def halt(code: str) -> rules.RulePage:
        raise TrainingHalted(f"Training was halted at step 7, on {code}.")

    monkeypatch.setattr(rules, "page", halt)
    assert call("explain", "SY101") == (23, "", "steady: Training was halted at step 7, on SY101.\n")


# -- explain


def test_explain_prints_every_section_of_a_page(call: Call) -> None:
    code, out, _ = call("explain", "sy101")
    assert code == 0
    page = rules.page("SY101")
    assert page.summary in out
    for heading, text in page.sections.items():
        assert heading in out
        assert text in out


def test_explain_without_a_code_lists_all_of_them(call: Call) -> None:
    code, out, _ = call("explain")
    assert code == 0
    assert len(rules.pages()) > 50
    for page in rules.pages():
        assert page.code in out
        assert page.slug in out


def test_explain_as_json_carries_the_sections(call: Call) -> None:
    told = json.loads(call("explain", "non_finite_loss", "--json")[1])
    assert told["code"] == "SY101"
    assert list(told["sections"]) == list(rules.HEADINGS)
    assert [entry["code"] for entry in json.loads(call("explain", "--json")[1])] == [p.code for p in rules.pages()]


def test_explain_of_an_unknown_code_says_how_to_list_them(call: Call) -> None:
    code, _, err = call("explain", "SY999")
    assert code == 2
    assert "There is no rule 'SY999'" in err
    assert "steady explain" in err


# -- incidents


def test_incidents_lists_them_and_exits_with_1(call: Call, run: Path) -> None:
    code, out, _ = call("incidents", str(run))
    assert code == 1
    assert "2 incidents" in out
    first = next(line for line in out.splitlines() if "steps 7-8" in line)
    for word in ("nan_loss", "the loss is nan", "skipped + lowered the rate", "batch-7", "not diagnosed"):
        assert word in first
    assert "SY401  step 12" in out


def test_incidents_writes_control_characters_as_escapes(call: Call, run: Path) -> None:
    out = call("incidents", str(run))[1]
    for character in "\x1b\x07\u202e\u2028":
        assert character not in out
    assert r"layers.0\x1b[2J\x07\u202egnp.\u2028exe" in out.replace("\n", "")
    assert call("incidents", str(run), "--json")[1].isascii()


def test_incidents_of_a_healthy_run_exits_with_0(call: Call, tmp_path: Path) -> None:
    Journal(tmp_path / "fine").close()
    code, out, _ = call("incidents", str(tmp_path / "fine"))
    assert code == 0
    assert "no incident" in out


def test_incidents_as_json_reads_back_as_the_same_incidents(call: Call, run: Path) -> None:
    from steadygrad.records import from_plain

    told = json.loads(call("incidents", str(run), "--json")[1])
    read = [from_plain(Incident, data) for data in told["incidents"]]
    assert [(incident.number, incident.headline) for incident in read] == [(1, "the loss is nan"), (2, HOSTILE)]
    assert told["incidents"][0]["findings"][0]["evidence"]["loss"] == "nan"


def test_incidents_last_shows_the_newest_only(call: Call, run: Path) -> None:
    out = call("incidents", str(run), "--last", "1")[1]
    assert "step 40" in out
    assert "steps 7-8" not in out
    assert "2 incidents, the newest 1 of them" in out


# -- the diagnosis of an incident


def test_a_diagnosis_names_origin_rows_cause_and_the_best_remedy_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    from steadygrad.reporters.terminal.console import console
    from steadygrad.reporters.terminal.print_diagnosis import print_diagnosis

    print_diagnosis(console(), an_incident(diagnosis=a_diagnosis()))
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert lines[0] == "incident 1, steps 7-8: the loss is nan"
    for words in (
        "origin    the loss   div   train.py:88", "x = a / b", "b float32 4, largest 2.5, 1 zero",
        "2 (sample ids 10233)", "DX201 zero_division, reproduced 3 of 3", "steady explain DX201",
    ):  # fmt: skip
        assert words in text
    worked = next(i for i, line in enumerate(lines) if "RX130" in line)
    failed = next(i for i, line in enumerate(lines) if "RX120" in line)
    assert worked < failed
    assert "<- least change" in lines[worked]
    assert "still not finite" in text


def test_an_incident_without_a_diagnosis_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    from steadygrad.reporters.terminal.console import console
    from steadygrad.reporters.terminal.print_diagnosis import print_diagnosis

    print_diagnosis(console(), an_incident())
    assert "not diagnosed" in capsys.readouterr().out


def test_numbers_are_short_and_non_finite_ones_are_words() -> None:
    from steadygrad.reporters.terminal.console import number

    assert [number(value) for value in (None, math.nan, math.inf, -math.inf, 0.0, 1234.5678, 1.5e-9)] == [
        "-", "nan", "inf", "-inf", "0", "1235", "1.5e-09",
    ]  # fmt: skip


# -- starting quickly


@pytest.mark.parametrize(
    "arguments", [["--help"], ["explain", "SY101"], ["explain"], ["incidents", "RUN"], ["demo", "--help"]]
)
def test_the_light_verbs_import_no_torch(arguments: list[str], run: Path) -> None:
    arguments = [str(run) if argument == "RUN" else argument for argument in arguments]
    assert "torch" not in modules_after(arguments)


def test_the_check_for_torch_can_fail(tmp_path: Path) -> None:
    assert "torch" in modules_after(["demo", "--steps", "1", "--run-dir", str(tmp_path / "run"), "--json"])


def modules_after(arguments: list[str]) -> set[str]:
    """What is imported after a verb has run in a fresh interpreter."""
    script = (
        "import sys\n"
        f"sys.argv = ['steady', *{arguments!r}]\n"
        "from steadygrad.commands import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    print('|'.join(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split("|"))


def test_a_run_is_diagnosed_by_the_incident_that_has_a_remedy_and_ends_with_the_line_to_change(
    tmp_path: Path, call: Call
) -> None:
    line = "loss = total / count.clamp_min(1)"
    remedy = Remedy(code="RX130", slug="eps", change="a floor", code_change=line, own_line=True)
    trial = Trial(remedy=remedy, finite=True, verified=True, loss_gap=0.0)
    found = Diagnosis(
        symptom="nan_loss", phase="loss", cause=Cause(code="DX201", slug="zero_division"), trials=(trial,)
    )
    with Journal(tmp_path / "run") as journal:
        journal.incident(an_incident(1, diagnosis=found))
        journal.incident(an_incident(2, first_step=20, last_step=20, diagnosis=replace(found, trials=())))
        journal.incident(an_incident(3, first_step=30, last_step=30, diagnosis=None))
    code, out, _ = call("diagnose", str(tmp_path / "run"))
    assert code == 1
    assert out.startswith("incident 1, ")
    assert "2 more of this kind: steps 20, 30" in out
    *_, fix, tried = out.rstrip().splitlines()
    assert fix.strip() == f"fix       {line}"
    assert tried.strip() == "(tried on this step: finite, loss moved 0.0 %)"
    code, out, _ = call("incidents", str(tmp_path / "run"))
    assert "same kind as 1" in out
    assert "not diagnosed" not in out


def test_watch_waits_for_a_run_that_does_not_exist_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steadygrad.commands.during_training import watch

    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        assert len(waits) < 5
        if len(waits) == 3:
            Journal(tmp_path / "run").close()

    monkeypatch.setattr(watch.time, "sleep", sleep)
    watch._wait_for(tmp_path / "run", every=0.5)
    assert waits == [0.5, 0.5, 0.5]


def test_replay_of_a_run_without_a_capsule_is_one_sentence_that_names_what_there_is(tmp_path: Path, call: Call) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.incident(an_incident(1))
    for target in (tmp_path / "run", tmp_path / "run/incidents/0001"):
        code, _, err = call("replay", str(target), "--yes")
        assert code == 2
        assert "so it cannot be replayed" in err
        assert f"steady diagnose {tmp_path / 'run'}" in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("incidents", "none"), "JournalError"),
        (("verify", "none"), "JournalError"),
        (("watch", "none"), "JournalError"),
        (("report", "none"), "JournalError"),
        (("diagnose", "none"), "JournalError"),
        (("explain", "SY999"), "UsageError"),
        (("scan", "none", "--bisect"), "UsageError"),
        (("incidents",), "UsageError"),
        (("verify", "none", "--no-such-option"), "UsageError"),
    ],
)
def test_an_error_under_json_is_one_object(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*words, "--json")
    told = json.loads(out)
    assert (code, err) == (2, "")
    assert list(told) == ["error", "code", "hint"]
    assert (told["code"], told["hint"]) == (kind, f"steady {words[0]} --help lists the arguments")


def test_an_error_of_steady_run_leaves_standard_output_to_the_program(call: Call) -> None:
    code, out, err = call("run", "--json", "none.py")
    assert (code, out) == (2, "")
    assert json.loads(err)["code"] == "UsageError"


def test_json_behind_the_program_is_the_programs_own(call: Call) -> None:
    code, out, err = call("run", "--policy", "observe", "none.py", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("steady: There is no script none.py")


@pytest.mark.parametrize(("word", "code"), [("masked_softmax", "DX206"), ("nan", "SY101"), ("DX2003", "DX203")])
def test_explain_names_the_rules_that_a_word_may_mean(call: Call, word: str, code: str) -> None:
    exit_code, _, err = call("explain", word)
    assert exit_code == 2
    assert f"Near it: {'' if word != 'masked_softmax' else code}" in err
    assert code in err
    assert "Near it" not in call("explain", "zzzz")[2]


def test_a_silent_error_that_is_an_incident_is_listed_once(tmp_path: Path, call: Call) -> None:
    said = "the target is in the input"
    with Journal(tmp_path / "run") as journal:
        journal.incident(an_incident(1, first_step=1, last_step=1, symptom="silent", headline=said, diagnosis=None))
        journal.event("vitals", code="SY450", slug="target_leak", step=1, subject="predictions", detail=said)
    _, out, _ = call("incidents", str(tmp_path / "run"))
    assert out.count("SY450") == 0
    assert "silent errors" not in out
    _, out, _ = call("watch", str(tmp_path / "run"), "--once")
    assert not any(line.split()[:1] == ["silent"] for line in out.splitlines())
