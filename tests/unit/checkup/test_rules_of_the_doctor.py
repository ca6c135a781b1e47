"""Every rule of the doctor triggers on its specimens, stays silent on its near misses, and has a whole page."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from steadygrad.checkup import rules
from steadygrad.checkup.doctor import judge
from steadygrad.checkup.inputs.facts import Data, Setup
from steadygrad.checkup.inputs.input_files import read_target
from steadygrad.checkup.inputs.run_settings import Settings, flatten, kind_of
from steadygrad.checkup.inputs.script import Script
from steadygrad.checkup.rule_selection import Selection
from steadygrad.records import rules as pages
from steadygrad.records.checks.checkup import Advice, Level

JUDGES = rules.judges()


def thing_of(case: Any, folder: Path) -> Script | Settings | Setup | Data:
    """Text is a script, a mapping is a configuration, a pair is a file; facts are themselves."""
    if isinstance(case, str):
        return Script("specimen.py", case)
    if isinstance(case, dict):
        values = flatten(case)
        return Settings(path="specimen.json", values=values, kind=kind_of(values))
    if isinstance(case, tuple):
        path = folder / case[0]
        path.write_text(case[1])
        return read_target(path)
    assert isinstance(case, Setup | Data)
    return case


def found_by(rule: ModuleType, case: Any, folder: Path) -> list[Advice]:
    return list(judge(thing_of(case, folder), Selection(select=(rule.RULE.code,))))


def cases(attribute: str) -> list[Any]:
    return [
        pytest.param(rule, case, id=f"{rule.RULE.code}-{number}")
        for rule in JUDGES
        for number, case in enumerate(getattr(rule, attribute, ()))
    ]


@pytest.mark.parametrize(("rule", "case"), cases("SPECIMENS"))
def test_a_specimen_triggers_its_rule(rule: ModuleType, case: Any, tmp_path: Path) -> None:
    found = found_by(rule, case, tmp_path)
    assert {advice.code for advice in found} == {rule.RULE.code}
    for advice in found:
        assert "fault" not in advice.evidence, advice.detail
        assert advice.detail
        assert advice.help
        assert advice.line > 0 if isinstance(case, str) else advice.subject or advice.path


@pytest.mark.parametrize(("rule", "case"), cases("ONLY_NOTES"))
def test_what_may_be_meant_so_is_a_note(rule: ModuleType, case: Any, tmp_path: Path) -> None:
    found = found_by(rule, case, tmp_path)
    assert {(advice.code, advice.level) for advice in found} == {(rule.RULE.code, Level.NOTE)}


@pytest.mark.parametrize(("rule", "case"), cases("WARNINGS"))
def test_what_the_file_shows_is_a_warning_or_an_error(rule: ModuleType, case: Any, tmp_path: Path) -> None:
    found = found_by(rule, case, tmp_path)
    assert found
    assert {advice.code for advice in found} == {rule.RULE.code}
    assert all(advice.level is not Level.NOTE for advice in found)


@pytest.mark.parametrize(("rule", "case"), cases("NEAR_MISSES"))
def test_a_near_miss_does_not(rule: ModuleType, case: Any, tmp_path: Path) -> None:
    assert found_by(rule, case, tmp_path) == []


def test_there_are_at_least_forty_rules_and_each_has_both_kinds_of_cases() -> None:
    assert len(JUDGES) >= 40
    for rule in JUDGES:
        assert rule.SPECIMENS, rule.RULE.code
        assert rule.NEAR_MISSES, rule.RULE.code


def test_codes_and_names_are_unique_and_agree_with_the_file_names() -> None:
    codes = [rule.RULE.code for rule in JUDGES]
    assert len(set(codes)) == len(codes)
    for rule in JUDGES:
        file = rule.__name__.split(".")[-1]
        assert file == f"{rule.RULE.code.lower()}_{rule.RULE.slug}"


def test_every_page_has_every_section_and_a_public_reference() -> None:
    found = {page.code: page for page in pages.pages() if page.code.startswith("PF")}
    assert set(found) == {rule.RULE.code for rule in JUDGES}
    for page in found.values():
        assert list(page.sections) == list(pages.HEADINGS), page.code
        assert all(text.strip() for text in page.sections.values()), page.code
        assert re.search(r"https://\S+", page.sections["References"]), page.code


def test_the_rules_that_judge_live_objects_are_all_on_the_list_for_a_glance() -> None:
    named = {rule.__name__.split(".")[-1] for rule in JUDGES if hasattr(rule, "of_setup")}
    assert named == {rule.__name__.split(".")[-1] for rule in rules.judges_of_setup()}


def test_no_rule_judges_nothing() -> None:
    judges_of = ("of_script", "of_settings", "of_setup", "of_data")
    assert [rule.RULE.code for rule in JUDGES if not any(hasattr(rule, name) for name in judges_of)] == []


def test_a_rule_that_breaks_says_so_and_the_others_still_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    first = JUDGES[0]

    def broken(script: Script) -> list[Advice]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(first, "of_script", broken)
    text = "import torch\noptimizer = torch.optim.Adam(weights, eps=0)\n"
    found = list(judge(Script("a.py", text), Selection()))
    assert [(advice.code, advice.level.value) for advice in found] == [(first.RULE.code, "note"), ("PF105", "error")]
    assert "ZeroDivisionError: a bug" in found[0].detail


def test_an_option_whose_default_is_another_option_does_not_send_the_doctor_in_circles() -> None:
    text = """
import torch
parser.add_argument("--lr", default=defaults.lr)
args = parser.parse_args()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, eps=args.lr)
"""
    assert list(judge(Script("a.py", text), Selection())) == []
