"""User state is not modified: hooks, handlers, filters, paths, environment; and each training has state of its own."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from drivers import IN_PROCESS, RANKS, RUN, environment, plain, plain_all, steady, train, train_all, without_faults
from registry import guarantee
from scenario import Scenario, differing

ONE_BAD = Scenario(faults={5: "nan_input"}, diagnose="auto")
HALTS = Scenario(steps=20, faults=dict.fromkeys(range(4, 20), "nan_input"))
HEALTHY = Scenario(steps=44, optimizer="sgd", faults={30: "spike"})
SKIPS_ONE = Scenario(faults={5: "nan_input"})
KEEPS = Scenario(keeps="inside", faults={3: "nan_input", 7: "nan_gradient"}, diagnose="auto")

FOOTPRINT = """
import json, logging, os, signal, sys, warnings
import torch
m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=0.1)
for k in range(4):
    x = torch.randn(8, 4)
    o.zero_grad(); m(x).pow(2).mean().backward(); o.step()
print(json.dumps({
    "signals": [repr(signal.getsignal(s)) for s in sorted(signal.valid_signals()) if s not in (9, 19)],
    "filters": [repr(f) for f in warnings.filters],
    "path": [p for p in sys.path if "bootstrap" not in p],
    "arguments": sys.argv,
    "environment": sorted(k for k in os.environ if not k.startswith("STEADYGRAD")),
    "handlers": [repr(type(h)) for h in logging.getLogger().handlers],
    "streams": [repr(type(s)) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "name": __name__,
    "deterministic": [torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(), torch.get_num_threads()],
}))
"""


def footprint() -> dict[str, Any]:
    """Of this process, what belongs to the user and not to a guard."""
    return {
        "signals": [repr(signal.getsignal(s)) for s in sorted(signal.valid_signals()) if s not in (9, 19)],
        "filters": list(warnings.filters),
        "path": list(sys.path),
        "finders": list(sys.meta_path),
        "environment": dict(os.environ),
        "handlers": list(logging.getLogger().handlers),
        "hook": sys.excepthook,
        "backward": torch.Tensor.backward,
        "functions": (torch.autograd.backward, torch.nn.Module.__call__, torch.optim.SGD.step, torch.jit.script),
        "clip": torch.nn.utils.clip_grad_norm_,
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@guarantee("H", entries=IN_PROCESS)
def test_after_close_the_process_is_as_it_was(entry: str) -> None:
    plain(entry, ONE_BAD)  # what the framework itself leaves behind is there before
    before = footprint()
    train(entry, ONE_BAD)
    after = footprint()
    assert [name for name in before if before[name] != after[name]] == []


@guarantee("H", entries=[*IN_PROCESS, RANKS])
def test_after_close_the_users_objects_have_no_hook_and_no_method_of_ours(entry: str) -> None:
    scenario = Scenario(faults={5: "nan_input"})
    assert train(entry, scenario).hooks == plain(entry, scenario).hooks


@guarantee("H", entries=[RUN])
def test_a_program_finds_signals_filters_paths_arguments_and_environment_as_without_us(
    entry: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(FOOTPRINT)
    alone = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, env=environment()
    )
    ours = steady("run", "--run-dir", str(tmp_path / "run"), str(program), cwd=tmp_path)
    assert ours.stdout == alone.stdout
    assert (ours.returncode, alone.returncode) == (0, 0)


@guarantee("H")
def test_a_training_after_one_that_halted_starts_afresh(entry: str) -> None:
    found = train_all(entry, [HALTS, HEALTHY, SKIPS_ONE])
    assert found[0].error == "TrainingHalted"
    wanted = plain_all(entry, [HEALTHY, without_faults(entry, SKIPS_ONE)])
    for one, other in zip(found[1:], wanted, strict=True):
        assert one.error is None, one.message
        assert differing(one, other) == []


@guarantee("H")
def test_what_the_model_counts_collects_and_draws_is_that_of_the_programs_calls(entry: str) -> None:
    """A refused step is run again many times; each batch was given to the model once."""
    found = train(entry, KEEPS)
    wanted = plain(entry, KEEPS.but(faults={}))
    assert found.summary["skipped"] == 2
    assert wanted.kept[0] == KEEPS.steps
    for one, other in zip([found, *found.others], [wanted, *wanted.others], strict=True):
        assert one.kept == other.kept


@guarantee("H")
def test_a_step_that_reaches_a_database_a_queue_or_a_generator_is_not_run_again(entry: str) -> None:
    """What cannot be undone happens once for each batch, and the diagnosis says why there is none."""
    scenario = KEEPS.but(keeps="outside")
    found = train(entry, scenario)
    assert "verified remedy" not in found.said
    wanted = plain(entry, scenario.but(faults={}))
    assert found.summary["skipped"] == 2
    for one, other in zip([found, *found.others], [wanted, *wanted.others], strict=True):
        assert one.kept == other.kept
