"""Why something could not be scanned. Apart from the rest so that raising it needs no numpy."""

from __future__ import annotations

from ...records.errors import SteadyError


class Unreadable(SteadyError, ValueError):
    """A checkpoint cannot be read, and why, in one sentence."""

    exit_code = 2
