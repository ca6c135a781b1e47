"""`steady report`: one file, everything in it, nothing of a stranger's taken for markup, one sentence for bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_runs import CLOSING, QUOTES, Call, hostile_run, without_permission, write_extreme_runs, write_long_run

from steadygrad.journal import Journal
from steadygrad.reporters.html.embed import as_json, static
from steadygrad.reporters.html.write import write_report


class Page(HTMLParser):
    """A page taken apart the way a browser does it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data: dict[str, Any] = {}
        self._inside: list[str] = []
        self._scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(f"{tag} {dict(attrs).get('type', '')}".strip())

    def handle_data(self, data: str) -> None:
        inside = self._inside[-1] if self._inside else ""
        if inside == "script application/json":
            self.data = json.loads(data)
        elif not inside.startswith(("script", "style")):
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "dt", "dd", "p", "div", "figcaption", "h1", "h2", "h3", "h4", "li", "pre"):
            self.text += "\n"
        while self._inside and self._inside.pop().split()[0] != tag:
            pass

    def names(self) -> list[str]:
        return [tag for tag, _ in self.tags]

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def page_of(*runs: Path, tmp_path: Path) -> Page:
    write_report(runs, tmp_path / "report.html")
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_a_real_runs_page_tells_cause_line_rows_remedies_and_what_to_do(guarded_run: Path, tmp_path: Path) -> None:
    page = page_of(guarded_run, tmp_path=tmp_path)
    words = page.words
    assert page.data["runs"][0]["clip"] == 1.0
    source = (Path(__file__).parent / "ratio_model.py").read_text().splitlines()
    line = 1 + next(place for place, text in enumerate(source) if "mask.sum(1)" in text)
    for told in (
        "3 of 60 updates refused (loss NaN). The weights are clean.", "ended at step 59", "an exact zero",
        f"ratio_model.py:{line}",
        "return (hidden * mask).sum(1) / mask.sum(1)", "samples 2003", "Origin", "The steps before it",
        "Remedies tried by replaying this step", "least change", "What to do", "steady explain DX201", "bad input",
        "clip",
    ):  # fmt: skip
        assert told in words, told


def test_every_incident_is_marked_and_every_curve_is_there(long_run: Path, tmp_path: Path) -> None:
    page = page_of(long_run, tmp_path=tmp_path)
    (run,) = page.data["runs"]
    assert [(number, first) for number, first, *_ in run["incidents"]] == [(1, 812), (2, 2400), (3, 2401), (4, 4100)]
    assert set(run["curves"]) == {"loss", "grad_norm", "lr", "success", "loss_scale"}
    assert set(run["terms"]) == {"ce", "kd"}
    assert run["clip"] == 1.0
    assert run["heat"]["tensors"] == 60
    assert min(run["curves"]["success"]["low"]) == 98.0
    assert max(value for value in run["curves"]["grad_norm"]["high"] if value) > 50
    assert "4 of 5,000 updates refused (loss NaN)." in page.words
    assert "left the range of float16 in layers.1.attn" in page.words
    assert "lost update" in page.words


def test_the_steps_before_an_incident_show_how_the_norms_grew(long_run: Path, tmp_path: Path) -> None:
    """The run was made so that every norm is 41 times its base at the end of the hundred steps before a bad one."""
    words = page_of(long_run, tmp_path=tmp_path).words
    listed = re.findall(r"(layers\.1\.attn\.\w+\.weight) [\d.,]+ [\d.,]+ \u00d7 ([\d.]+)", words)
    assert {name for name, _ in listed} >= {"layers.1.attn.q_proj.weight", "layers.1.attn.v_proj.weight"}
    # Wandering by at most 40 % on either side of it.
    assert all(41 / 1.4 / 1.4 < float(times) < 41 * 1.4 for _, times in listed)
    assert "811" in words


def test_the_page_loads_nothing_and_lets_nothing_be_loaded(long_run: Path, tmp_path: Path) -> None:
    page = page_of(long_run, tmp_path=tmp_path)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base", "form")
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(
        a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("'sha256-") == page.names().count("script") - 1
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_names_from_a_stranger_stay_text(tmp_path: Path, long_run: Path) -> None:
    place = tmp_path / CLOSING.replace("/", "_")
    page = page_of(hostile_run(place), tmp_path=tmp_path)
    plain = page_of(long_run, tmp_path=tmp_path)
    assert set(page.names()) <= set(plain.names())
    assert page.names().count("script") == plain.names().count("script")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert CLOSING in page.words
    (run,) = page.data["runs"]
    assert run["heat"]["levels"][0]["names"][0] == CLOSING
    assert list(run["terms"]) == [CLOSING]
    raw = (tmp_path / "report.html").read_text(encoding="utf-8")
    page_of(place, tmp_path=tmp_path)
    for character in "\x1b\u202e\u2028":
        assert character not in raw


def test_json_in_a_page_cannot_end_its_element_and_reads_back_the_same() -> None:
    hostile = {CLOSING: [QUOTES, "<!--", "]]>", "\u2029"]}
    text = str(as_json(hostile))
    assert not set("<>&'\u2028\u2029") & set(text)
    assert json.loads(text) == hostile


def test_uplot_ships_with_its_licence() -> None:
    assert "uPlot" in static("vendor/uPlot.iife.min.js")[:60]
    assert "MIT" in static("vendor/uPlot.LICENSE")
    assert "Leon Sorokin" in static("vendor/uPlot.LICENSE")


def test_several_runs_stand_side_by_side(guarded_run: Path, long_run: Path, tmp_path: Path) -> None:
    page = page_of(guarded_run, long_run, tmp_path=tmp_path)
    assert [run["name"] for run in page.data["runs"]] == ["ratio", "five-thousand"]
    assert "2 runs side by side" in page.words
    assert "3 of 60 updates refused" in page.words
    assert "4 of 5,000 updates refused (loss NaN)." in page.words
    anchors = [attributes["id"] for tag, attributes in page.tags if tag == "details" and "id" in attributes]
    assert len(anchors) == len(set(anchors)) == 3  # a card for each kind of incident


def test_a_directory_of_a_thousand_runs_draws_the_newest_and_lists_the_others(tmp_path: Path, call: Call) -> None:
    """A thousand copies of one small run: the files are the same, only their names and times differ."""
    first = write_long_run(tmp_path / "runs" / "run-0000", steps=30, tensors=3, bad=(20,))
    about = json.loads((first / "run.json").read_text())
    for index in range(1, 1000):
        place = tmp_path / "runs" / f"run-{index:04d}"
        (place / "steps").mkdir(parents=True)
        (place / "run.json").write_text(json.dumps(about))
        os.utime(place / "run.json", (index, index))
        if index >= 990:
            os.link(first / "steps" / "rank0-0001.arrow", place / "steps" / "rank0-0001.arrow")
    os.utime(first / "run.json", (1_000_000, 1_000_000))
    (tmp_path / "runs" / "run-0999" / "run.json").write_text("{torn")
    os.utime(tmp_path / "runs" / "run-0999" / "run.json", (999, 999))
    code, out, _ = call("report", tmp_path / "runs", "-o", tmp_path / "all.html", "--json")
    assert code == 0
    told = json.loads(out)
    drawn = [Path(run["run"]).name for run in told["runs"]]
    assert drawn == ["run-0000", *(f"run-{index:04d}" for index in range(998, 991, -1))]
    page = Page((tmp_path / "all.html").read_text())
    assert all(f"run-{index:04d}" in page.text for index in range(1000))
    assert "is not JSON that steadygrad wrote" in page.words
    assert told["bytes"] < 3_000_000


def test_the_command_says_where_the_report_is(guarded_run: Path, tmp_path: Path, call: Call) -> None:
    place = tmp_path / "out.html"
    code, out, err = call("report", guarded_run, "--output", place)
    assert (code, err) == (0, "")
    assert "3 of 60 updates refused" in out
    assert str(place) in out
    assert place.read_text().startswith("<!doctype html>")
    code, out, _ = call("report", guarded_run)
    assert (guarded_run / "report.html").exists()


def test_a_resumed_run_is_drawn_in_the_order_of_its_steps(tmp_path: Path) -> None:
    *_, resumed = write_extreme_runs(tmp_path / "runs")
    page = page_of(resumed, tmp_path=tmp_path)
    (run,) = page.data["runs"]
    assert run["curves"]["loss"]["x"] == list(range(32))
    assert [line["x"] for line in run["curves"]["loss"]["earlier"]] == [list(range(12, 20))]
    assert run["steps"] == [0, 31]
    assert "All 32 updates applied." in page.words


def test_not_a_run_is_one_sentence(tmp_path: Path, call: Call) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "empty").mkdir()
    for target, told in (
        ("nowhere", "nowhere does not exist"),
        (tmp_path / "thesis.txt", "is a file, not a run directory"),
        (tmp_path / "empty", "is not a run directory: it holds no run.json"),
    ):
        for verb in ("report", "watch"):
            code, out, err = call(verb, target)
            assert (code, out) == (2, "")
            assert told in err
            assert err.count("\n") == 1


def test_an_empty_run_is_one_sentence(tmp_path: Path, call: Call) -> None:
    Journal(tmp_path / "run").close()
    code, out, err = call("report", tmp_path / "run")
    assert (code, out) == (2, "")
    assert err.endswith("holds no steps yet: the run was made, and nothing was settled in it.\n")
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_newer_format_is_one_sentence(tmp_path: Path, call: Call) -> None:
    write_long_run(tmp_path / "run", steps=5, tensors=2)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(about | {"version": 99}))
    for verb in ("report", "watch"):
        code, _, err = call(verb, tmp_path / "run")
        assert code == 2
        assert "has format version 99 and this steadygrad reads up to 1: upgrade steadygrad." in err


def test_a_torn_journal_is_reported_up_to_the_tear_and_told(tmp_path: Path, call: Call) -> None:
    write_long_run(tmp_path / "run", steps=100, tensors=3)
    (segment,) = (tmp_path / "run" / "steps").glob("*.arrow")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-8] + whole[-300:-40])
    code, out, _ = call("report", tmp_path / "run", "-o", tmp_path / "torn.html")
    assert code == 0
    assert "torn record of 260 bytes" in out
    words = Page((tmp_path / "torn.html").read_text()).words
    assert "100 steps" in words
    assert "Every step before it is here." in words


def test_no_permission_is_one_sentence(tmp_path: Path, call: Call) -> None:
    run = write_long_run(tmp_path / "run", steps=5, tensors=2)
    call("report", run, "-o", tmp_path / "fine.html")  # everything imported before permissions are given up
    with without_permission(run):
        for verb in ("report", "watch"):
            code, out, err = call(verb, run)
            assert (code, out) == (2, "")
            assert "cannot be read: permission denied." in err


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, call: Call) -> None:
    run = write_long_run(tmp_path / "run", steps=5, tensors=2)
    code, out, err = call("report", run, "-o", tmp_path / "no" / "such" / "place.html")
    assert (code, out) == (2, "")
    assert "The report cannot be written to" in err
    assert "no such file or directory. Pass another place with --output." in err


def test_a_planted_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    run = write_long_run(tmp_path / "run", steps=5, tensors=2)
    (tmp_path / "mine.txt").write_text("mine")
    (run / "report.html").symlink_to(tmp_path / "mine.txt")
    write_report([run], run / "report.html")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not (run / "report.html").is_symlink()


def test_reporting_and_watching_import_no_torch(long_run: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom steadygrad.commands import make_app\n"
        f"for args in (['report', {str(long_run)!r}, '-o', {str(tmp_path / 'r.html')!r}], "
        f"['watch', {str(long_run)!r}, '--once']):\n"
        "    make_app()(args, standalone_mode=False)\n"
        "print('torch' in sys.modules, 'textual' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


def test_the_help_of_both_verbs_imports_neither_torch_nor_numpy_nor_arrow() -> None:
    """What makes a start slow is what is imported; the clock itself is not asked, for a machine may be busy."""
    script = (
        "import sys\nfrom steadygrad.commands import make_app\n"
        "for verb in ('report', 'watch'):\n    make_app()([verb, '--help'], standalone_mode=False)\n"
        "print(sorted({'torch', 'numpy', 'pyarrow', 'jinja2', 'textual', 'rich.progress'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_two_hundred_thousand_steps_of_three_hundred_tensors_stay_under_three_megabytes(tmp_path: Path) -> None:
    bad = tuple(range(3000, 200_000, 997))
    run = write_long_run(tmp_path / "run", steps=200_000, tensors=300, bad=bad)
    page = page_of(run, tmp_path=tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    assert [first for _, first, *_ in page.data["runs"][0]["incidents"]] == list(bad)
    assert f"200,000 steps, {len(bad)} refused" in page.words
