"""Runs one page of the documentation as a reader would: `python page_runner.py PAGE`, in an empty directory.

Python blocks run in their order, each seeing what those before it defined. One whose first line is a file name in a
comment (`# train.py`) is written to that file instead. In a `console` block each line after `$ ` is run by the shell
and must end with 0, or with what a trailing `# exits with N` says; each line shown below it must be found in what was
printed, in that order. In a shown line `...` stands for anything, and runs of spaces are one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w./-]+\.(?:py|toml|yaml|json))\n")


def blocks(text: str) -> list[tuple[str, str]]:
    """The blocks that run, in order."""
    return [(language, body) for language, body in FENCE.findall(text) if language in ("python", "console")]


def run_page(text: str, name: str) -> int:
    """Run everything that runs. Returns how many blocks that were."""
    names: dict[str, object] = {"__name__": "__page__"}
    found = blocks(text)
    for number, (language, body) in enumerate(found, start=1):
        if language == "console":
            _run_console(body)
        elif (file := FILE_NAME.match(body)) is not None:
            Path(file[1]).write_text(body, encoding="utf-8")
        else:
            exec(compile(body, f"{name} block {number}", "exec"), names)
    return len(found)


def _run_console(body: str) -> None:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        code = re.search(r"# exits with (\d+)$", command)
        wanted = int(code[1]) if code is not None else 0
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "110"}
        done = subprocess.run(
            command, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            env=environment,
        )  # fmt: skip
        assert done.returncode == wanted, f"$ {command}\nexited with {done.returncode}:\n{done.stdout}"
        _compare(command, shown, done.stdout)


def _compare(command: str, shown: str, printed: str) -> None:
    lines = [_single(line) for line in printed.splitlines()]
    place = 0
    for line in filter(None, map(_single, shown.splitlines())):
        if line == "...":
            continue
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))) + "$")
        match = next((n for n in range(place, len(lines)) if pattern.match(lines[n])), None)
        assert match is not None, f"$ {command}\nshows {line!r}, which was not printed there:\n{printed}"
        place = match + 1


def _single(line: str) -> str:
    return " ".join(line.split())


if __name__ == "__main__":
    page = Path(sys.argv[1])
    print(f"{run_page(page.read_text(encoding='utf-8'), page.name)} blocks ran")
