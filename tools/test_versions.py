"""Run the fast suite on the lowest and on the newest supported torch, each in an environment of its own.

python tools/test_versions.py                       both; environments in .versions/, gigabytes each
python tools/test_versions.py --versions 2.8.0      another one
python tools/test_versions.py -- tests/unit/engine  only these tests

The lowest version is the one that pyproject.toml asks for; the newest is what pip takes today. Everything else is the
newest that goes with it. The table is printed and, with --md FILE, written.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".versions"
EXTRAS = ("watch", "zoo", "trainers", "recipes", "dev")
WATCHED = ("torch", "transformers", "accelerate", "peft", "trl", "lightning", "numpy")
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


def project() -> dict[str, list[str]]:
    """What pyproject.toml asks for: "" is the package itself, the rest are its extras."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"": data["dependencies"], **data["optional-dependencies"]}


def lowest() -> str:
    """The lowest torch that the package allows."""
    asked = next(line for line in project()[""] if line.startswith("torch>="))
    return f"{asked.removeprefix('torch>=')}.0"


def requirements() -> list[str]:
    """All that the suite needs besides torch, each as a range."""
    asked = project()
    lines = {line for name in ("", *EXTRAS) for line in asked[name]}
    return sorted(line for line in lines if not line.startswith(("torch>", "steadygrad[")))


def environment(version: str) -> Path:
    """The python of an environment with that torch ("newest": whatever pip takes) and everything else."""
    home = PLACE / version
    python = home / "bin" / "python"
    if not (home / ".installed").exists():
        venv.create(home, with_pip=True, clear=True)
        torch = "torch" if version == "newest" else f"torch=={version}"
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, torch], check=True)
        subprocess.run([*pip, torch, *requirements()], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
        (home / ".installed").touch()
    return python


def installed(python: Path) -> dict[str, str]:
    """The versions that matter, as that environment has them."""
    code = (
        "from importlib.metadata import version, PackageNotFoundError\n"
        f"for name in {WATCHED}:\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass\n"
    )
    told = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout
    return dict(line.split() for line in told.splitlines())


def counts(output: str) -> dict[str, int]:
    """The numbers of pytest's last line."""
    last = next((line for line in reversed(output.splitlines()) if _COUNT.search(line)), "")
    return {word.removesuffix("s") if word == "errors" else word: int(number) for number, word in _COUNT.findall(last)}


def run(version: str, tests: Sequence[str]) -> tuple[dict[str, str], dict[str, int], list[str]]:
    """The versions, pytest's counts and the tests that failed. The output goes to .versions/VERSION.log as well."""
    python = environment(version)
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = []
        for line in child.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    output = "".join(lines)
    (PLACE / f"{version}.log").write_text(output, encoding="utf-8")
    failed = [line.split(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return installed(python), counts(output), failed


def table(results: Sequence[tuple[dict[str, str], dict[str, int], list[str]]]) -> str:
    """A row for each environment, then what failed."""
    rows = ["| " + " | ".join(WATCHED) + " | passed | failed | skipped |", "|---" * (len(WATCHED) + 3) + "|"]
    for versions, numbers, _ in results:
        bad = numbers.get("failed", 0) + numbers.get("error", 0)
        cells = [*(versions.get(name, "-") for name in WATCHED), numbers.get("passed", 0), bad]
        rows.append("| " + " | ".join(map(str, [*cells, numbers.get("skipped", 0)])) + " |")
    lost = [f"- torch {versions['torch']}: `{name}`" for versions, _, failed in results for name in failed]
    return "\n".join(["\n".join(rows), *(["", *lost] if lost else [])])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--versions", default="", help="comma-separated; default: the lowest and newest")
    parser.add_argument("--md", type=Path, help="write the table to this file")
    parser.add_argument("tests", nargs="*", help="what pytest is given; default: the fast suite")
    given = parser.parse_args()
    wanted = given.versions.split(",") if given.versions else [lowest(), "newest"]
    results = [run(version, given.tests) for version in wanted]
    text = f"Measured on {datetime.now(UTC):%Y-%m-%d} by `make test-versions`.\n\n{table(results)}\n"
    print(text)
    if given.md is not None:
        given.md.write_text(text, encoding="utf-8")
    good = all(numbers.get("passed") and not failed for _, numbers, failed in results)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
