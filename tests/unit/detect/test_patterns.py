"""Rules over several observed steps: each sees its specimen and not its near miss, and nothing in what is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from steadygrad.detect import detectors, patterns
from steadygrad.detect.observations.observed_run import NotAsked, ObservedRun
from steadygrad.detect.observations.step_observation import Gradient, StepObservation
from steadygrad.detect.sampled import judge_samples
from steadygrad.records import rules

FOLDER = Path(rules.__file__).parents[1] / "detect" / "patterns"


def _name(module: ModuleType) -> str:
    return f"{module.RULE.code}-{module.RULE.slug}"


@pytest.mark.parametrize("module", patterns.ALL, ids=_name)
def test_a_pattern_sees_its_specimen_and_not_its_near_miss(module: ModuleType) -> None:
    run = module.SPECIMEN()
    found = module.suspect(run)
    assert found is not None
    assert found.code == module.RULE.code
    assert found.step in [observed.step for observed in run.steps]
    assert module.suspect(module.NEAR_MISS()) is None


@pytest.mark.parametrize("module", patterns.ALL, ids=_name)
def test_a_pattern_has_a_whole_page_and_a_file_of_its_name(module: ModuleType) -> None:
    page = rules.page(module.RULE.code)
    assert tuple(page.sections) == rules.HEADINGS
    assert all(text.strip() for text in page.sections.values())
    assert page.path.stem == page.slug == module.RULE.slug
    assert (module.__doc__ or "").splitlines()[0] == page.summary


def test_every_rule_file_is_run_and_no_code_is_used_twice() -> None:
    with_rule = {path.stem for path in FOLDER.glob("*.py") if "\nRULE = " in path.read_text()}
    assert {module.__name__.rpartition(".")[2] for module in patterns.ALL} == with_rule
    run = {rule.__module__ for rule in (*patterns.EACH_STEP, *patterns.AT_THE_END)}
    assert {module.__name__ for module in patterns.ALL} <= run
    codes = [module.RULE.code for module in (*detectors.ALL, *judge_samples.ALL, *patterns.ALL)]
    assert len(codes) == len(set(codes))


def test_steps_of_which_nothing_was_observed_give_no_suspicion() -> None:
    run = ObservedRun(NotAsked())
    for step in range(10):
        run.add(StepObservation(step=step, terms={"loss": 1.0}))
        assert run.suspect() is None
    assert run.conclude() is None


def test_the_detectors_of_a_live_step_name_what_is_not_finite_in_an_observed_one() -> None:
    nan = float("nan")
    bad = {
        "SY101": StepObservation(terms={"loss": nan}),
        "SY102": StepObservation(terms={"loss": 1.0, "kl": nan}),
        "SY103": StepObservation(terms={"loss": 1.0}, gradients={"head": Gradient("head", True, nan, nan)}),
        "SY105": StepObservation(terms={"loss": 1.0}, bad_after=[("parameter", "head")]),
        "SY106": StepObservation(terms={"loss": 1.0}, bad_after=[("optimizer", "head/exp_avg")]),
    }
    for code, observed in bad.items():
        run = ObservedRun(NotAsked())
        run.add(observed)
        found = run.suspect()
        assert found is not None
        assert found.code == code


def test_an_overflow_of_a_dynamic_loss_scale_is_waited_for_and_not_for_ever() -> None:
    inf = float("inf")
    run = ObservedRun(NotAsked())
    found = None
    for step in range(20):
        gradients = {"head": Gradient("head", True, inf, inf)}
        run.add(StepObservation(step=step, terms={"loss": 1.0}, gradients=gradients, dynamic_scale=True))
        found = found or run.suspect()
    assert found is not None
    assert found.step == patterns.non_finite_steps.SCALER_PATIENCE


def test_a_buffer_that_is_bad_for_one_step_is_not_reported_and_one_that_stays_bad_is() -> None:
    key = ("buffer", "bn.running_var")
    passing, staying = ObservedRun(NotAsked()), ObservedRun(NotAsked())
    for run in (passing, staying):
        run.add(StepObservation(step=0, terms={"loss": 1.0}))
        run.add(StepObservation(step=1, terms={"loss": 1.0}, bad_after=[key]))
        assert run.suspect() is None
    passing.add(StepObservation(step=2, terms={"loss": 1.0}))
    assert passing.suspect() is None
    staying.add(StepObservation(step=2, terms={"loss": 1.0}, bad_before=[key], bad_after=[key]))
    found = staying.suspect()
    assert found is not None
    assert (found.step, found.code) == (1, "SY107")


def test_patterns_import_no_torch() -> None:
    code = "import sys, steadygrad.detect.patterns; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
