"""Every rule over the record of a loop: its page, its specimen, its near miss."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import steadygrad as sg
from steadygrad.detect.loop import rules as loop_rules
from steadygrad.detect.loop.loop_recorder import LoopRecorder
from steadygrad.records import rules, to_plain


def _name(module: ModuleType) -> str:
    return f"{module.RULE.code}-{module.RULE.slug}"


@pytest.mark.parametrize("module", loop_rules.ALL, ids=_name)
def test_rule_sees_its_specimen_and_not_its_near_miss(module: ModuleType) -> None:
    found = module.judge(module.SPECIMEN())
    assert found is not None
    assert (found.code, found.slug) == (module.RULE.code, module.RULE.slug)
    assert found.evidence["fix"]
    json.dumps(to_plain(found), allow_nan=False)
    assert module.judge(module.NEAR_MISS()) is None


@pytest.mark.parametrize("module", loop_rules.ALL, ids=_name)
def test_near_miss_of_one_rule_is_no_specimen_of_another(module: ModuleType) -> None:
    assert [found.code for found in loop_rules.judge(module.NEAR_MISS())] == []


def test_every_rule_file_is_run() -> None:
    home = Path(loop_rules.__file__).parent
    with_rule = {path.stem for path in home.rglob("*.py") if "\nRULE = " in path.read_text()}
    assert {module.__name__.rpartition(".")[2] for module in loop_rules.ALL} == with_rule
    assert len(with_rule) >= 14


@pytest.mark.parametrize("module", loop_rules.ALL, ids=_name)
def test_rule_has_a_whole_page(module: ModuleType) -> None:
    page = rules.page(module.RULE.code)
    assert tuple(page.sections) == rules.HEADINGS
    assert all(page.sections.values())


def test_recording_pauses_and_goes_on_inside_a_forward_without_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test of this process may have compiled something, and then hooks stay where they are.
    monkeypatch.setattr("steadygrad.detect.loop.loop_recorder._something_is_compiled", lambda: False)
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = sg.attach(optimizer, model=model)
    recorded = []
    for _ in range(260):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).pow(2).mean().backward()
        optimizer.step()
        recorded.append(guard._checker.recorder._loops[0].record.count)
    guard.close()
    assert guard.summary()["guard_faults"] == {}
    assert recorded[199] == recorded[245] == 200
    assert 200 < recorded[-1] < 210
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_compiled_model_gets_no_hook_of_the_recorder() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.compile(backend="eager")
    faults: list[Exception] = []
    recorder = LoopRecorder(model, [optimizer], failed=faults.append)
    for step in range(3):
        recorder.before_forward(step)
    assert (model._forward_hooks, model._forward_pre_hooks) == ({}, {})
    assert not optimizer._optimizer_step_post_hooks
    recorder.close()
    assert faults == []
