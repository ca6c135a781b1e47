"""The memory of a run: sampled rarely, kept in the journal, shown by watch, report and plot, and verified."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from made_runs import Call

import steadygrad as sg
from steadygrad.engine.record import memory_use
from steadygrad.engine.record.memory_use import EVERY_STEPS, MemoryUse
from steadygrad.journal import Journal, read_steps
from steadygrad.records import StepRecord
from steadygrad.records.step_record import GPU_MEMORY, GPU_MEMORY_PEAK, HOST_MEMORY
from steadygrad.reporters.html.charts import chart_data
from steadygrad.reporters.live_view.print_once import memory_line
from steadygrad.reporters.pictures.plot_scene import scene_of
from steadygrad.reporters.pictures.plot_shapes import PlotText
from steadygrad.reporters.run_data.current_numbers import glance
from steadygrad.reporters.run_data.follow_run import RunFollower
from steadygrad.reporters.run_data.run_summary import RunSummary, summarise


def run_with(path: Path, gigabytes: list[float], *, peak: float | None = None) -> Path:
    """A run of a step a sample, on a GPU whose tensors take this much after each step."""
    with Journal(path) as journal:
        for step, used in enumerate(gigabytes):
            most = max(gigabytes[: step + 1]) if peak is None else peak
            terms = {HOST_MEMORY: 9e9, GPU_MEMORY: used * 1e9, GPU_MEMORY_PEAK: most * 1e9, "ce": 0.5}
            journal.step(StepRecord(run=journal.run_id, step=step, loss=2.0 / (1 + step), grad_norm=1.0, terms=terms))
    return path


def story_of(path: Path) -> RunSummary:
    follower = RunFollower(path)
    follower.poll()
    return summarise(path, follower)


def test_a_guarded_run_records_its_memory_at_few_of_its_steps(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sg.Guard(model, optimizer, lambda m, x: m(x).pow(2).mean(), run_dir=tmp_path / "run") as guard:
        for _ in range(2 * EVERY_STEPS + 1):
            guard.step(torch.ones(2, 4))
    kept = [record for record in read_steps(tmp_path / "run") if HOST_MEMORY in record.terms]
    steps = [record.step for record in kept]  # on a busy machine a second may pass earlier
    assert steps[0] == 0
    assert all(later - step <= EVERY_STEPS for step, later in itertools.pairwise([*steps, 2 * EVERY_STEPS]))
    assert len(kept) < EVERY_STEPS  # this machine would need a second a step
    assert all(5e7 < record.terms[HOST_MEMORY] < 1e12 for record in kept)


def test_a_sample_is_taken_every_fifty_steps_or_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_use, "measured", lambda: {HOST_MEMORY: 1.0})
    fast, slow = MemoryUse(), MemoryUse()
    assert [step for step in range(120) if fast.sample(1000 + step * 0.001)] == [0, 50, 100]
    assert [step for step in range(5) if slow.sample(1000 + step * 0.7)] == [0, 2, 4]


def test_of_several_gpus_the_fullest_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [{"allocated_bytes.all.current": 3, "allocated_bytes.all.peak": 9}, {"allocated_bytes.all.current": 5}]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: used[device])
    found = memory_use.measured()
    assert (found[GPU_MEMORY], found[GPU_MEMORY_PEAK]) == (5.0, 9.0)


def test_memory_is_no_loss_term(tmp_path: Path) -> None:
    rows = story_of(run_with(tmp_path / "run", [1.0] * 20)).rows
    assert rows is not None
    assert rows.term_names == ["ce"]


def test_memory_is_in_the_glance_the_report_and_the_plot(tmp_path: Path) -> None:
    story = story_of(run_with(tmp_path / "run", [1.0, 1.5, 1.2]))
    memory = glance(story)["memory"]
    assert (memory["of"], memory["bytes"], memory["most"]) == ("GPU", 1.2e9, 1.5e9)
    assert memory_line(memory).startswith("GPU memory 1.2 GB, at most 1.5 GB ")
    (drawn,) = chart_data([story], {})["runs"]
    assert drawn["curves"]["memory"]["mid"] == [1.0, 1.5, 1.2]
    assert "GPU memory, GB" in [shape.text for shape in scene_of(story).shapes if isinstance(shape, PlotText)]


def test_a_run_without_recorded_memory_is_shown_without(tmp_path: Path) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.step(StepRecord(run=journal.run_id, step=0, loss=1.0, grad_norm=1.0))
    story = story_of(tmp_path / "run")
    assert glance(story)["memory"] is None
    assert "memory" not in chart_data([story], {})["runs"][0]["curves"]
    assert not [shape for shape in scene_of(story).shapes if isinstance(shape, PlotText) and "memory" in shape.text]


def checks(call: Call, run: Path, limit: str) -> tuple[int, dict[str, str]]:
    code, out, _ = call("verify", str(run), "--max-memory", limit, "--json")
    found = json.loads(out)["checks"] if code < 2 else []
    return code, {check["slug"]: check["mark"] for check in found if check["slug"].startswith("memory")}


def test_verify_passes_memory_that_is_flat_and_under_the_limit(tmp_path: Path, call: Call) -> None:
    run = run_with(tmp_path / "run", [0.4] + [1.7] * 29)
    assert checks(call, run, "2GB") == (0, {"memory_below": "pass", "memory_stable": "pass"})
    assert checks(call, run, "1.5GiB")[1]["memory_below"] == "fail"  # 1.61 GB
    assert checks(call, run, "1700 MB")[1]["memory_below"] == "pass"


def test_verify_fails_a_peak_between_two_samples_and_memory_that_grows(tmp_path: Path, call: Call) -> None:
    peak = run_with(tmp_path / "peak", [1.7] * 30, peak=2.3)
    assert checks(call, peak, "2GB") == (1, {"memory_below": "fail", "memory_stable": "pass"})
    leak = run_with(tmp_path / "leak", [1.0 + step / 40 for step in range(30)])
    assert checks(call, leak, "2GB") == (1, {"memory_below": "pass", "memory_stable": "fail"})


def test_memory_that_was_asked_for_and_not_recorded_is_no_pass(tmp_path: Path, call: Call) -> None:
    with Journal(tmp_path / "run") as journal:
        journal.step(StepRecord(run=journal.run_id, step=0, loss=1.0, grad_norm=1.0))
    assert checks(call, tmp_path / "run", "2GB") == (1, {"memory_below": "not checked", "memory_stable": "not checked"})


@pytest.mark.parametrize("limit", ["much", "-1GB", "0", "2 GX", "1.2.3GB"])
def test_a_limit_that_is_no_size_is_a_usage_error(tmp_path: Path, call: Call, limit: str) -> None:
    code, _, err = call("verify", str(run_with(tmp_path / "run", [1.0])), f"--max-memory={limit}")
    assert code == 2
    assert "write a size such as 2GB" in err
