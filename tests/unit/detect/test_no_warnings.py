"""Warnings that are ignored for a while."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from steadygrad.detect.loop.no_warnings import no_warnings


def test_what_the_program_has_been_warned_of_once_is_not_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    registry: dict[Any, Any] = {}

    def warn(message: str) -> None:
        warnings.warn_explicit(message, UserWarning, "train.py", 3, registry=registry)

    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: seen.append(str(message)))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warn("a")
        with no_warnings():
            warn("b")
        warn("a")
        warn("b")
    assert seen == ["a", "b"]


def test_filters_that_are_set_inside_are_undone() -> None:
    before, show = list(warnings.filters), warnings.showwarning
    with no_warnings():
        warnings.simplefilter("error")
        warnings.showwarning = print  # type: ignore[assignment]
    assert list(warnings.filters) == before
    assert warnings.showwarning is show
