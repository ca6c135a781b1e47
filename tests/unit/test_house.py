"""The house rules that a machine can check: who may import whom, what import costs, what is public, what is written.

Every check here is a function over a folder or a script, and has a twin that shows it failing on a folder or script
that breaks the rule: a check that cannot fail proves nothing.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import steadygrad

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "steadygrad"

# From the top floor down. A package may import from its own floor and from those below.
FLOORS = (
    ("__main__",),
    ("commands",),
    ("reporters", "integrations"),
    ("integrations/guard", "integrations/build", "integrations/handle", "diagnosis"),
    ("engine", "checkup"),
    ("policy", "detect"),
    ("journal", "numerics", "testing"),
    ("records",),
)
# Narrower than their floor: reporters read a run and nothing else, and nothing but a command needs a reporter.
ONLY = {
    "reporters": {"reporters", "journal", "records"},
    "journal": {"journal", "records"},
    "numerics": {"numerics", "records"},
    "testing": {"testing", "records"},
    "records": {"records"},
}
# The same inside a package: its modules and folders, from the top down.
WITHIN = {
    "integrations": (
        ("zero_code",),
        ("attach",),
        ("accelerate", "deepspeed", "lightning", "transformers"),
        ("hf",),
        ("optimizer",),
        ("loops",),
        ("guard",),
        ("build", "handle"),
    ),
    "checkup": (
        ("doctor", "live_objects", "trials"),
        ("rule_selection",),
        ("rules", "live_traits"),
        ("advice",),
        ("inputs", "scan"),
    ),
    "reporters": (
        ("html", "live_view", "trackers", "pictures", "checklist", "export"),
        ("terminal",),
        ("run_data",),
    ),
    "journal": (
        ("journal",),
        ("open_files",),
        ("program_end",),
        ("steps", "events", "incident_files", "writer_thread"),
        ("journal_health", "checksummed_lines", "run_directory"),
        ("safe_files",),
    ),
    "numerics": (
        ("generation", "losses", "logit_bounds"),
        ("masked_means", "logit_repair", "row_pieces"),
        ("published_findings",),
        ("rules", "kernels"),
    ),
    "policy": (("decide",), ("escalation",), ("presets",)),
}
WITHOUT_TORCH = ("records", "journal", "reporters", "commands", "checkup/scan")
WITH_TORCH = "commands/demo_parts"  # the program that `steady demo` trains
MAX_LINES = 500

PUBLIC = [
    "ActivationMonitorCallback",
    "Decision",
    "Diagnosis",
    "Finding",
    "GradientMonitorCallback",
    "Guard",
    "GuardHandle",
    "Incident",
    "Outcome",
    "Policy",
    "SteadyError",
    "TrainingHalted",
    "UsageError",
    "attach",
    "diagnose",
    "doctor",
    "probe",
    "selftest",
]


# -- who may import whom


def floor_of(part: str) -> int:
    for height, names in enumerate(FLOORS):
        if part in names:
            return height
    raise AssertionError(f"{part} is on no floor: put it on one in FLOORS and in docs/architecture.md")


def package_of(parts: Sequence[str]) -> str:
    """The longest part of a module's path that FLOORS names, else its first part."""
    found = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((part for part in found if any(part in names for names in FLOORS)), parts[0])


def imported(path: Path, package: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and path of every import of our own, wherever in the file it stands; the path may end in a name."""
    here = ["steadygrad", *path.relative_to(package).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets: list[list[str]] = []
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            targets = [module + [alias.name] for alias in node.names]
        for target in targets:
            if target[0] == "steadygrad" and len(target) > 1:
                yield getattr(node, "lineno", 0), target[1:]


def boundary_violations(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        if path == package / "__init__.py":
            continue  # the public names, resolved lazily
        here = path.relative_to(package).with_suffix("").parts
        part = package_of(here)
        for line, target in imported(path, package):
            if target[0].startswith("__"):
                continue  # steadygrad.__version__
            other = package_of(target)
            upward = floor_of(other) < floor_of(part)
            if upward or other not in ONLY.get(part, {other}):
                words = f"{path.relative_to(package)}:{line} {part} imports {other}"
                found += [words] if words not in found else []
            elif here[0] == target[0] and (inner := upward_within(here, target)):
                found.append(f"{path.relative_to(package)}:{line} {inner}")
    return found


def upward_within(here: Sequence[str], target: Sequence[str]) -> str:
    """What is wrong with an import between two entries of one package, "" if nothing is."""
    floors = WITHIN.get(here[0], ())
    height = {name: number for number, names in enumerate(floors) for name in names}
    if not floors or len(target) < 2 or here[1] in ("__init__", target[1]):
        return ""
    if target[1] not in height:
        return ""  # a name of the package itself
    assert here[1] in height, f"{here[0]}/{here[1]} is on no floor of its package: put it on one in WITHIN"
    return f"{here[1]} imports {target[1]}" if height[target[1]] < height[here[1]] else ""


def test_imports_go_downward_only() -> None:
    assert len(list(PACKAGE.rglob("*.py"))) > 100
    assert boundary_violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("detect/probe.py", "from ..engine.owned_loop import OwnedLoop"),
        ("detect/deep/probe.py", "from ...diagnosis import service"),
        ("engine/step/device_gate.py", "from ... import integrations"),
        ("integrations/guard.py", "from .attach import attach"),
        ("integrations/loops/loop_guard.py", "from ..hf import trainer_guard"),
        ("policy/presets.py", "from .decide import decide"),
        ("journal/checksummed_lines.py", "import steadygrad.policy"),
        ("journal/checksummed_lines.py", "from steadygrad.detect import history"),
        ("records/step_record.py", "def f():\n    from ..journal import Journal"),
        ("reporters/html/report_page.py", "from ...integrations.guard import Guard"),
        ("records/rules.py", "from ..detect import history"),
        ("diagnosis/lookup.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..commands import main"),
    ],
)
def test_the_boundary_check_can_fail(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    assert len(boundary_violations(tmp_path)) == 1


def test_the_boundary_check_lets_downward_and_level_imports_pass(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "gate.py").write_text(
        "import torch\nfrom ..detect.history import History\nfrom ..records import Reading\nfrom . import record\n"
    )
    (tmp_path / "commands.py").write_text("from .engine import validate\nfrom .records.errors import SteadyError\n")
    assert boundary_violations(tmp_path) == []


# -- what importing costs


def modules_after(script: str) -> set[str]:
    script += "\nimport sys\nprint('|'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split("|"))


def modules_in(*packages: str) -> list[str]:
    found = []
    for package in packages:
        paths = [path for path in sorted((PACKAGE / package).rglob("*.py")) if PACKAGE / WITH_TORCH not in path.parents]
        names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths]
        found += [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    return found


def test_importing_the_package_imports_no_torch_and_nothing_of_ours() -> None:
    modules = modules_after("import steadygrad")
    assert "steadygrad" in modules
    assert "torch" not in modules
    assert not [name for name in modules if name.startswith("steadygrad.")]


def test_reading_a_run_and_starting_a_command_import_no_torch() -> None:
    wanted = modules_in(*WITHOUT_TORCH)
    assert len(wanted) > 25
    modules = modules_after("\n".join(f"import {name}" for name in wanted))
    assert set(wanted) <= modules
    assert "torch" not in modules


def test_the_import_checks_can_fail() -> None:
    modules = modules_after("import steadygrad; steadygrad.Guard")
    assert "torch" in modules
    assert "steadygrad.integrations.guard" in modules


# -- what is public


def test_the_public_names_are_exactly_these_and_all_of_them_resolve() -> None:
    assert steadygrad.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC
    for name in PUBLIC:
        assert getattr(steadygrad, name).__name__ == name
        assert name in dir(steadygrad)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'guardian'"):
        steadygrad.guardian  # noqa: B018


# -- what is written


def text_files() -> list[Path]:
    """Every file of the project that a person reads: what git would add, less what is not text."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.splitlines() if listed.returncode == 0 else []
    paths = [ROOT / name for name in names] or [p for p in (ROOT / "src").rglob("*") if p.is_file()]
    kinds = {".py", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".sh", "", ".svg", ".csv"}
    return [path for path in paths if path.is_file() and path.suffix in kinds]


# Written in two parts, so that this file does not hold what it forbids.
FORBIDDEN = re.compile(
    "|".join(("/wor" + "k/", "/roo" + "t/", "/ho" + r"me/\w", "TO" + "DO", "FIX" + "ME", "XX" + "X "))
)


def forbidden_words(paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if match := FORBIDDEN.search(line):
                found.append(f"{path.name}:{number} {match[0]}")
    return found


def test_no_path_of_one_machine_and_no_bare_reminder_is_in_the_tree() -> None:
    files = text_files()
    assert len(files) > 100
    assert forbidden_words(files) == []


def test_the_check_for_forbidden_words_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("fine\nsee /wor" + "k/main\n# TO" + "DO: later\n")
    assert forbidden_words([path]) == ["notes.md:2 /wor" + "k/", "notes.md:3 TO" + "DO"]


MAX_ENTRIES = 12
MAX_NAMES_TWICE = 10


def crowded(package: Path) -> list[str]:
    """The folders with more modules, files and folders than a person takes in at a glance."""
    left_out = ("__init__.py", "__main__.py", "__pycache__", "py.typed")
    counted = {
        folder: len([entry for entry in folder.iterdir() if entry.name not in left_out])
        for folder in (package, *(path for path in package.rglob("*") if path.is_dir() and path.name != "__pycache__"))
    }
    return [f"{folder.name} has {count} entries" for folder, count in counted.items() if count > MAX_ENTRIES]


def test_no_folder_has_more_than_twelve_entries() -> None:
    assert crowded(PACKAGE) == []


def test_the_check_for_crowded_folders_can_fail(tmp_path: Path) -> None:
    for number in range(13):
        (tmp_path / f"module{number}.py").write_text("")
    assert crowded(tmp_path) == [f"{tmp_path.name} has 13 entries"]


def names_used_twice(package: Path) -> list[str]:
    names = [path.stem for path in package.rglob("*.py") if not path.stem.startswith("__")]
    return sorted({name for name in names if names.count(name) > 1})


def test_few_module_names_are_used_twice() -> None:
    assert len(names_used_twice(PACKAGE)) <= MAX_NAMES_TWICE


def test_the_check_for_names_used_twice_can_fail(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "state.py").write_text("")
    assert names_used_twice(tmp_path) == ["state"]


def too_long(paths: list[Path]) -> list[str]:
    counted = ((path, len(path.read_text(encoding="utf-8").splitlines())) for path in paths)
    return [f"{path.name} has {lines} lines" for path, lines in counted if lines > MAX_LINES]


def test_no_source_file_is_longer_than_500_lines() -> None:
    assert too_long(sorted(PACKAGE.rglob("*.py"))) == []


def test_the_check_for_length_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("x = 1\n" * 501)
    assert too_long([path]) == ["long.py has 501 lines"]
