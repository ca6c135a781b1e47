"""Starts the live view, which needs optional packages."""

from __future__ import annotations

from pathlib import Path

from ...records.errors import UsageError


def show(run: Path, *, every: float) -> None:
    """Follow the run on the terminal until it is left with q."""
    try:
        from .app import WatchApp
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("textual", "textual_plot", "textual_hires_canvas"):
            raise
        raise UsageError(
            'The live view needs Textual: `pip install "steadygrad[watch]"`, or look once with `steady watch --once`.'
        ) from None
    WatchApp(run, every=every).run()
