"""Every rule of the watch room: its page, its specimen, its near miss."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import pytest

from steadygrad.detect import detectors
from steadygrad.detect.detectors.non_finite import non_finite_input, non_finite_loss
from steadygrad.detect.history import History
from steadygrad.detect.sampled import judge_samples
from steadygrad.policy import Policy
from steadygrad.records import Reading, rules, to_plain

BALANCED = Policy.named("balanced")
WATCH = Path(rules.__file__).parents[1] / "detect"


def _name(module: ModuleType) -> str:
    return f"{module.RULE.code}-{module.RULE.slug}"


@pytest.mark.parametrize("module", detectors.ALL, ids=_name)
def test_detector_sees_its_specimen_and_not_its_near_miss(module: ModuleType) -> None:
    policy = getattr(module, "POLICY", BALANCED)
    reading, history = module.SPECIMEN()
    found = module.detect(reading, history, policy)
    assert found is not None
    assert (found.code, found.slug, found.step) == (module.RULE.code, module.RULE.slug, reading.step)
    assert found.detail
    json.dumps(to_plain(found), allow_nan=False)
    reading, history = module.NEAR_MISS()
    assert module.detect(reading, history, policy) is None


@pytest.mark.parametrize("module", judge_samples.ALL, ids=_name)
def test_judge_of_vitals_sees_its_specimen_and_not_its_near_miss(module: ModuleType) -> None:
    samplings = module.SPECIMEN()
    found = module.judge(samplings, BALANCED)
    assert found is not None
    assert (found.code, found.step) == (module.RULE.code, samplings[-1].step)
    assert found.subject in found.detail
    json.dumps(to_plain(found), allow_nan=False)
    assert module.judge(module.NEAR_MISS(), BALANCED) is None


@pytest.mark.parametrize(
    ("room", "modules"), [("detectors", detectors.ALL), ("sampled", judge_samples.ALL)], ids=["detectors", "vitals"]
)
def test_every_rule_file_is_run(room: str, modules: tuple[ModuleType, ...]) -> None:
    with_rule = {path.stem for path in (WATCH / room).rglob("*.py") if "\nRULE = " in path.read_text()}
    assert len(with_rule) >= 8
    assert {module.__name__.rpartition(".")[2] for module in modules} == with_rule


@pytest.mark.parametrize("module", [*detectors.ALL, *judge_samples.ALL], ids=_name)
def test_a_rule_has_a_whole_page_and_a_file_with_its_name(module: ModuleType) -> None:
    page = rules.page(module.RULE.code)
    assert tuple(page.sections) == rules.HEADINGS
    assert all(text.strip() for text in page.sections.values())
    assert page.path.stem == page.slug == module.RULE.slug
    assert (module.__doc__ or "").splitlines()[0] == page.summary


def test_codes_are_unique() -> None:
    codes = [module.RULE.code for module in (*detectors.ALL, *judge_samples.ALL)]
    assert len(codes) == len(set(codes)) >= 24


def test_detectors_alone_import_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, steadygrad.detect.judge_step, steadygrad.detect.sampled.judge_samples; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_sentence_counts_micro_batches_from_one_and_the_data_from_zero() -> None:
    bad = non_finite_loss.detect(
        Reading(step=3, loss=math.nan, grad_norm=math.nan, micro_losses=(0.5, math.nan, 0.4, 0.3)), History(), Policy()
    )
    assert bad is not None
    assert bad.detail == "the loss is nan in micro-batch 2 of 4"
    assert bad.evidence["micro_batches"] == [1]
    assert "from 0" in rules.page("SY101").sections["What it sees"]


def test_a_place_in_a_tuple_says_what_it_counts() -> None:
    bad = Reading(step=3, loss=math.nan, grad_norm=math.nan, bad_inputs=("0", "2.mask", "pixels"))
    found = non_finite_input.detect(bad, History(), Policy())
    assert found is not None
    assert found.detail == (
        "the batch itself is not finite: element 0 of the batch, element 2.mask of the batch, pixels"
    )
    assert found.evidence["inputs"] == ["0", "2.mask", "pixels"]
