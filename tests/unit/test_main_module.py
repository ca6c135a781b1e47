"""`python -m steadygrad` is the command `steady`."""

from __future__ import annotations

import subprocess
import sys


def test_the_package_can_be_run_like_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "steadygrad", "--version"], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.split()[0]) == (0, "steadygrad"), ran.stderr
