"""Every part that may fail has a stable code, and a page that says what goes on without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import steadygrad
from steadygrad.engine.fault_barrier import FaultBarrier
from steadygrad.records import rules
from steadygrad.records.errors import UsageError, code_of, internal_errors

SOURCE = Path(steadygrad.__file__).parent


def parts_in_the_source() -> set[str]:
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"(?:barrier|_working)\(\s*\"([a-z_]+)\"", text)) | set(
            re.findall(r"\.note\(\"([a-z_]+)\",", text)
        )
    return found - {"part"}  # the example in the barrier's own docstring


def test_every_part_that_may_fail_has_a_code() -> None:
    found = parts_in_the_source()
    assert len(found) > 25
    assert sorted(found - set(internal_errors())) == []


def test_no_part_is_listed_that_is_not_there() -> None:
    assert sorted(set(internal_errors()) - parts_in_the_source() - {"another"}) == []


def test_a_block_that_comes_up_with_nothing_shields_again_and_again() -> None:
    barrier = FaultBarrier()
    part = barrier("watch")
    for _ in range(2):
        with part, part:
            raise ValueError("ours")
    with part:
        pass
    assert barrier.faults == {"watch": 2}
    with pytest.raises(UsageError), part:
        raise UsageError("for the program")
    with pytest.raises(KeyboardInterrupt), part:
        raise KeyboardInterrupt


def test_codes_are_unique_and_have_a_page() -> None:
    codes = [error.code for error in internal_errors().values()]
    assert len(set(codes)) == len(codes)
    for error in internal_errors().values():
        page = rules.page(error.code)
        assert error.without in page.sections["Why it hurts"]
        assert rules.page(page.slug) == page


def test_a_fault_is_logged_and_recorded_with_its_code(caplog: pytest.LogCaptureFixture) -> None:
    told: list[dict[str, object]] = []
    barrier = FaultBarrier()
    barrier.report_to(lambda kind, **data: told.append({"kind": kind, **data}))
    with barrier("snapshots", None):
        raise ValueError("no room")
    assert "internal error of steadygrad IE201 in snapshots (ValueError: no room)" in caplog.text
    assert told[0]["code"] == "IE201"


def test_a_part_without_an_entry_has_the_general_code() -> None:
    assert code_of("nothing_of_that_name") == "IE100"
