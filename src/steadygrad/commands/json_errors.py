"""Errors for programs: what the caller got wrong, as one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from typer import Abort

from ..records.errors import SteadyError


def run_for_programs(app: Any, words: Sequence[str]) -> int:
    """Run one verb that was asked for JSON, and return its exit code.

    Instead of a sentence an error is `{"error": the sentence, "code": the kind of error, "hint": what may help}`: on
    standard output, but for `steady run`, whose standard output is the program's.
    """
    try:
        return int(app(standalone_mode=False) or 0)
    except SteadyError as error:
        return _told(type(error).__name__, str(error), error.exit_code, words)
    except Abort:
        return _told("Interrupted", "interrupted", 130, words)
    except Exception as error:
        if not hasattr(error, "format_message"):  # of click, which some versions of typer bring along themselves
            raise
        return _told("UsageError", error.format_message(), int(getattr(error, "exit_code", 2)), words)


def _told(kind: str, sentence: str, code: int, words: Sequence[str]) -> int:
    verb = next((word for word in words if not word.startswith("-")), "")
    hint = f"steady {verb} --help lists the arguments" if verb else "steady --help lists the commands"
    found = {"error": sentence[:2000], "code": kind, "hint": hint}
    print(json.dumps(found), file=sys.stderr if verb == "run" else sys.stdout)
    return code
