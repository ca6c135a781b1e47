"""Every rule of the scan fires on its specimen and not on its near miss, and has a whole page."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from scan_specimens import codes, scanned

from steadygrad.checkup.scan import apply_rules
from steadygrad.checkup.scan.rules import __path__ as room
from steadygrad.checkup.scan.scan import scan
from steadygrad.records import rules
from steadygrad.records.checks.scan import ScanLevel, ScanVerdict

FILES = sorted(path.stem for path in Path(room[0]).glob("ck*.py"))


def rule_of(name: str) -> ModuleType:
    return importlib.import_module(f"steadygrad.checkup.scan.rules.{name}")


def test_every_rule_is_asked() -> None:
    assert len(FILES) >= 7
    asked = {module.__name__.rpartition(".")[2] for module in (*apply_rules.RULES, apply_rules.ck104_unexpected_dtype)}
    assert asked == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_rule_fires_on_each_of_its_specimens_and_on_no_near_miss(name: str) -> None:
    module = rule_of(name)
    assert [finding.code for finding in module.look(module.SPECIMEN)]
    assert {finding.code for finding in module.look(module.SPECIMEN)} == {module.RULE.code}
    assert list(module.look(module.NEAR_MISS)) == []


@pytest.mark.parametrize("name", FILES)
def test_a_rule_has_a_page_with_every_heading(name: str) -> None:
    page = rules.page(rule_of(name).RULE.code)
    assert list(page.sections) == list(rules.HEADINGS)
    assert all(text.strip() for text in page.sections.values())
    assert name == f"{page.code.lower()}_{page.slug}"


def one(tmp_path: Path, **tensors: torch.Tensor) -> list[str]:
    path = tmp_path / "one.safetensors"
    save_file(tensors, path)
    return codes(scanned(path))


def test_a_mask_that_is_infinite_or_lowest_on_purpose_is_no_poison(tmp_path: Path) -> None:
    mask = torch.full((6, 6), -math.inf).triu(1)
    assert one(tmp_path, mask=mask) == []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert one(tmp_path, mask=torch.full((6, 6), torch.finfo(dtype).min, dtype=dtype).triu(1)) == []


def test_a_moment_of_zeros_and_positive_infinities_is_poison(tmp_path: Path) -> None:
    moment = torch.zeros(6, 6)
    moment[2] = math.inf
    assert one(tmp_path, moment=moment) == ["CK102"]


def test_a_flipped_bit_in_an_exponent_is_absurd(tmp_path: Path) -> None:
    weight = torch.full((4, 4), 0.5)
    weight.view(torch.int32)[1, 2] ^= 1 << 30
    assert weight[1, 2] > 1e38
    assert one(tmp_path, weight=weight) == ["CK103"]


@pytest.mark.parametrize(
    ("dtype", "healthy", "absurd"),
    [
        (torch.float32, 1e19, 2e19), (torch.bfloat16, 1e19, 2e19), (torch.float16, 32000, 33000),
        (torch.float64, 1e38, 1e39),
    ],
    ids=str,
)  # fmt: skip
def test_the_limit_of_what_is_absurd(tmp_path: Path, dtype: torch.dtype, healthy: float, absurd: float) -> None:
    for value, expected in ((healthy, []), (-healthy, []), (absurd, ["CK103"]), (-absurd, ["CK103"])):
        assert one(tmp_path, w=torch.tensor([1.0, value, 2.0], dtype=dtype)) == expected


def test_notes_do_not_poison(tmp_path: Path) -> None:
    path = tmp_path / "notes.safetensors"
    tensors = {
        "a": torch.zeros(4, 4, dtype=torch.bfloat16),
        "b": torch.ones(4, 4),
        "c": torch.full((8,), 1e-6, dtype=torch.float16),
    }
    save_file(tensors, path)
    found = scanned(path)
    assert codes(found) == ["CK201", "CK202", "CK203"]
    assert {finding.level for finding in found.findings} == {ScanLevel.NOTE}
    assert found.verdict is ScanVerdict.CLEAN


def test_the_wrong_type_is_poison_only_where_a_type_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "half.safetensors"
    save_file({"w": torch.ones(2, 2).half(), "norm": torch.ones(2), "ids": torch.ones(2, 2).long()}, path)
    assert scan([path]).exit_code == 0
    assert codes(scan([path], expected_dtype="float32")) == ["CK104"]
    assert scan([path], expected_dtype="float32").exit_code == 1
    assert scan([path], expected_dtype="float16").exit_code == 0
