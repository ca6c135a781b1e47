"""Documents that cannot drift: their Python runs, their links lead somewhere, their generated pages are current."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import page_runner

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/entry_points").glob("*.md")),
]


def python_blocks(text: str) -> list[str]:
    return [body for language, body in page_runner.blocks(text) if language == "python"]


WITH_BLOCKS = [page for page in PAGES if page_runner.blocks(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda path: path.name)
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, Path(page_runner.__file__), page], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "blocks ran" in done.stdout


def test_the_readme_has_blocks_to_run() -> None:
    assert len(python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))) >= 3


def test_a_block_that_is_wrong_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match="wrong"):
        page_runner.run_page("text\n```python\nx = 1\n```\nmore\n```python\nassert x == 2, 'wrong'\n```\n", "page")
    with pytest.raises(AssertionError, match="was not printed"):
        page_runner.run_page("```console\n$ echo one two\nnot this\n```\n", "page")
    with pytest.raises(AssertionError, match="exited with 3"):
        page_runner.run_page("```console\n$ exit 3\n```\n", "page")
    written = (
        "```python\n# made.py\nprint('four')\n```\n```console\n$ python made.py\nf...r\n$ exit 2  # exits with 2\n```\n"
    )
    assert page_runner.run_page(written, "page") == 2


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", ROOT / "docs", tmp_path / "site"],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "What it sees" in (tmp_path / "site/codes/SY101.html").read_text(encoding="utf-8")


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    listed = [str(page) for page in pages if page.parts[0] != "codes" and page.name != "index"]
    assert len(listed) >= 5
    assert [page for page in listed if f"\n{page}\n" not in index] == []


def test_links_between_pages_lead_somewhere() -> None:
    links = [
        (page, target)
        for page in [*PAGES, ROOT / "docs/codes/README.md"]
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert len(links) > 50
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def test_every_test_that_the_laws_name_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/laws.md").read_text(encoding="utf-8"))
    assert len(named) > 15
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).is_file() or f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_the_source_map_names_every_package_and_every_folder_in_one() -> None:
    lines = (ROOT / "docs/source_map.md").read_text(encoding="utf-8").splitlines()
    listed, package = [], ""
    for line in lines:
        if found := re.match(r"(  |    )(\w+)/ ", line):
            package = found[2] if found[1] == "  " else package
            listed.append(package if found[1] == "  " else f"{package}/{found[2]}")
    home = ROOT / "src/steadygrad"
    folders = {str(path.parent.relative_to(home)) for path in home.glob("*/__init__.py")}
    folders |= {str(path.parent.relative_to(home)) for path in home.glob("*/*/__init__.py")}
    assert len(folders) > 40
    assert sorted(listed) == sorted(folders)


def test_the_readme_is_short_and_has_a_picture() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 1200
    assert "](docs/report.png)" in readme


def test_the_front_page_has_a_picture() -> None:
    assert "](report.png)" in (ROOT / "docs/index.md").read_text(encoding="utf-8")


def test_the_glossary_has_at_most_25_terms_in_order() -> None:
    page = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"(?m)^\| ([a-z][\w ,-]*) \| [A-Z].*\.? \|$", page)
    assert 20 <= len(terms) <= 25
    assert terms == sorted(terms)


# -- generated pages


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools/generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_current(generator: ModuleType) -> None:
    assert generator.stale(generator.made_pages()) == [], "run python tools/generate_docs.py"


def test_a_page_that_is_missing_changed_or_orphaned_is_stale(generator: ModuleType, tmp_path: Path) -> None:
    codes = tmp_path / "codes"
    codes.mkdir()
    (codes / "SY101.md").write_text("old")
    (codes / "SY998.md").write_text("of a rule that is gone")
    (codes / "SY102.md").write_text("current")
    pages = {codes / "SY101.md": "new", codes / "SY102.md": "current", codes / "SY103.md": "never written"}
    assert generator.stale(pages, tmp_path) == ["codes/SY101.md", "codes/SY103.md", "codes/SY998.md"]


def test_every_number_of_a_policy_has_its_meaning_on_a_page() -> None:
    from dataclasses import fields

    from steadygrad import Policy

    page = (ROOT / "docs/api/policy.md").read_text(encoding="utf-8")
    meanings = dict(re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \| ([^|]*) \|$", page))
    assert [field.name for field in fields(Policy) if len(meanings.get(field.name, "").split()) < 3] == []


def test_the_reference_has_every_public_name() -> None:
    import steadygrad as sg

    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/api").glob("*.md"))
    names = [f"sg.{name}" for name in sg.__all__]
    names += [f"sg.numerics.{name}" for name in sg.numerics.__all__]
    names += [f"sg.testing.{name}" for name in sg.testing.__all__ if name != "KINDS"]
    assert len(names) > 40
    assert [name for name in names if f"## `{name}`\n" not in pages] == []


# Their example is a row of numbers, or something that no line of code mends.
WITHOUT_FIX = {"CK103", "RX164", "SY201", "SY202", "SY203", "SY301", "SY303", "SY304", "SY503"}


def test_a_code_page_shows_the_fix_beside_the_bug() -> None:
    from steadygrad.records import rules

    pages = [page for page in rules.pages() if not page.code.startswith("IE")]  # errors of our own, for us to mend
    examples = {page.code: page.sections.get("Smallest example", "") for page in pages}
    shown = {code for code, text in examples.items() if "# fixed\n" in text or "# instead of\n" in text}
    assert set(examples) - shown == WITHOUT_FIX


@pytest.mark.parametrize("code", ["DX203", "DX204", "DX206", "PF401", "PF407", "PF412", "SY104", "SY408"])
def test_the_bug_of_a_page_is_not_finite_and_its_fix_is(code: str) -> None:
    import torch

    from steadygrad.records import rules

    bug, fix = (inspect.cleandoc(part) for part in rules.page(code).sections["Smallest example"].split("# fixed\n"))

    def value_of(lines: str) -> torch.Tensor:
        parts = [part.strip() for line in lines.splitlines() for part in line.split("#")[0].split(";")]
        *before, last = [part for part in parts if part]
        names = {"torch": torch, "F": torch.nn.functional}
        exec("\n".join(before), names)
        return eval(last, names)

    assert not torch.isfinite(value_of(bug)).all()
    assert torch.isfinite(value_of(fix)).all()


def test_the_commands_page_names_every_verb_and_option(generator: ModuleType) -> None:
    from steadygrad.commands import verbs

    page = generator.commands_page()
    for verb in verbs():
        assert f"## `steady {verb}" in page
    assert "`--run-dir" in page


# -- examples


def test_the_mixed_precision_example_trains_past_its_bad_batches_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("mixed_precision", ROOT / "examples/mixed_precision.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    bad = sum(bool((labels == -100).all()) for _, labels in example.batches())
    first = example.main(str(tmp_path / "run"))
    assert first["skipped"] == bad == 3
    assert first["guard_faults"] == {}
    again = example.main(str(tmp_path / "run"))
    assert again["applied"] == first["applied"]
    assert again["steps"] == first["steps"]
