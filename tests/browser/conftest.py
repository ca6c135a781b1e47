"""A headless Chromium for the tests of the report, and the report as a person opens it: from a file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "reporters"))

from made_runs import write_long_run

from steadygrad.reporters.html.write import write_report

Open = Callable[..., Any]
PATIENCE_MS = 120_000
"""How long a busy machine may take; nothing waits this long on a quiet one."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make install")
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    options = ["--disable-gpu", "--disable-dev-shm-usage"] + (["--no-sandbox"] if os.geteuid() == 0 else [])
    with api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=found, args=options, timeout=PATIENCE_MS)
        except api.Error as error:
            pytest.skip(f"No browser starts here; `make browser` installs one. {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a file and, at the end, holds it against what the browser complained of."""
    contexts, complaints = [], []

    def opened(path: Path, *, width: int = 1400, dark: bool = False, phone: bool = False) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light",
            is_mobile=phone, has_touch=phone, offline=True, reduced_motion="reduce",
        )  # fmt: skip
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on(
            "request", lambda request: None if request.url == path.as_uri() else complaints.append(request.url[:200])
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of five thousand steps with four refused ones."""
    place = tmp_path_factory.mktemp("browser")
    run = write_long_run(place / "run", steps=5000, tensors=60, bad=(812, 2400, 2401, 4100))
    write_report([run], place / "report.html")
    return place / "report.html"
