"""What a program can ask Python about itself has the same answer under `steady run` as alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plain_and_guarded import ENVIRONMENT, STEADY, both

BY_DESIGN = {"PYTHONPATH", "STEADYGRAD_RUN", "STEADYGRAD_REPORTS"}
"""What every process below must inherit to be guarded as well; docs/entry_points/zero_code.md names them."""

ASKED = """
import sys
import atexit, gc, importlib, json, logging, os, signal, threading, warnings
TORCH = False
if TORCH:
    import torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

def plain(thing):
    return getattr(thing, "__name__", type(thing).__name__)

import __main__
print(json.dumps({
    "argv": [sys.argv, sys.orig_argv[1:], sys.flags[:], sys.warnoptions, sorted(sys._xoptions)],
    "path": sys.path,
    "meta_path": [plain(each) for each in sys.meta_path],
    "path_hooks": [plain(each) for each in sys.path_hooks],
    "cache": sorted(sys.path_importer_cache) if not TORCH else [],
    "main": [sorted(vars(__main__)), __name__, __file__, str(__spec__), str(__package__)],
    "environment": dict(os.environ),
    "filters": [repr(each) for each in warnings.filters],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
              threading.excepthook is threading.__excepthook__, sys.unraisablehook is sys.__unraisablehook__,
              sys.getprofile() is None, sys.gettrace() is None, sys.breakpointhook is sys.__breakpointhook__,
              plain(warnings.showwarning), plain(__builtins__.__import__), plain(importlib.import_module)],
    "signals": [str(signal.getsignal(number)).split(" at ")[0] for number in sorted(signal.valid_signals())],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
    "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), os.umask(0o22), os.getcwd(), os.getpriority(0, 0)],
    "streams": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stderr.encoding, sys.stdin.isatty()],
    "logging": [len(logging.root.handlers), logging.root.level, logging.raiseExceptions, plain(logging.lastResort),
                plain(logging.getLoggerClass())],
    "torch": [torch.is_grad_enabled(), str(torch.get_default_dtype()), torch.get_num_threads(),
              torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled(),
              torch.backends.cudnn.benchmark] if TORCH else [],
    "sitecustomize": "sitecustomize" in sys.modules,
}))
"""


@pytest.mark.parametrize("torch", [False, True])
def test_the_process_looks_the_same_as_alone(torch: bool, tmp_path: Path) -> None:
    program = ASKED.replace("TORCH = False", f"TORCH = {torch}")
    alone, guarded = both(program, tmp_path, words=["-W", "default", "-X", "utf8"]).told()
    environment = {name: value for name, value in guarded.pop("environment").items() if name not in BY_DESIGN}
    assert environment == {name: value for name, value in alone.pop("environment").items() if name not in BY_DESIGN}
    for name, value in alone.items():
        assert guarded[name] == value, name


def test_nothing_is_imported_before_the_programs_first_line(tmp_path: Path) -> None:
    program = "import sys, json\nprint(json.dumps(sorted(sys.modules)))\n"
    alone, guarded = both(program, tmp_path).told()
    more = set(guarded) - set(alone) - set(sys.builtin_module_names)
    assert more == {"steadygrad.integrations.zero_code.launch.import_hook"}


SHADOWS = dict.fromkeys(("pyarrow.py", "wrapt.py"), "NAME = 'mine'\n")


def test_a_module_of_the_programs_own_is_found_though_we_use_another_of_that_name(tmp_path: Path) -> None:
    program = """
import json, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in (1.0, float("nan"), 1.0):
    optimizer.zero_grad()
    model(torch.full((1, 2), x)).sum().backward()
    optimizer.step()
import pyarrow, wrapt
print(json.dumps([each.NAME for each in (pyarrow, wrapt)]))
"""
    ends = both(program, tmp_path, files=SHADOWS)
    alone, guarded = ends.told()
    assert guarded == alone == ["mine"] * 2
    assert (ends.summary["steps"], ends.summary["skipped"]) == (3, 1)


FINDER = """
import sys, importlib.machinery
{before}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "lightning"):
            return importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path.insert(0, Finder())
{how}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    if step == 3:
        x[1, 1] = float("nan")
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()), "poisoned"
print("[]")
"""
LAZY = """
import importlib.util
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
torch = importlib.util.module_from_spec(spec)
sys.modules["torch"] = torch
spec.loader.exec_module(torch)
"""


@pytest.mark.parametrize(
    "how",
    ["import torch", "torch = importlib.import_module('torch')", "import torch.nn as _; import torch", LAZY],
    ids=["statement", "function", "part", "lazily"],
)
def test_torch_is_met_whoever_found_it(how: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FINDER.format(before="", how=how))
    done = subprocess.run(
        [*STEADY, "run", "--diagnose", "off", "--json", "train.py"], cwd=tmp_path, env=ENVIRONMENT,
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stderr.splitlines()[-1])
    assert (summary["steps"], summary["skipped"]) == (6, 1)


RAISED = """
import sys
def mine(kind, error, trace):
    print("mine", kind.__name__, error, [frame.name for frame in __import__("traceback").extract_tb(trace)][-1])
{early}
import torch
{late}
model = torch.nn.Linear(2, 1)
def train():
    raise ValueError("theirs")
import atexit
atexit.register(print, "bye")
train()
"""


@pytest.mark.parametrize("place", ["early", "late", "reset", "none"])
def test_an_excepthook_of_the_programs_own_works_whenever_it_was_set(place: str, tmp_path: Path) -> None:
    lines = {
        "early": "sys.excepthook = mine",
        "late": "sys.excepthook = mine",
        "reset": "sys.excepthook = sys.__excepthook__",
    }
    early = lines["early"] if place == "early" else ""
    late = lines.get(place, "") if place != "early" else ""
    ends = both(RAISED.format(early=early, late=late), tmp_path)
    assert ends.guarded.returncode == ends.alone.returncode == 1
    assert ends.guarded.stdout == ends.alone.stdout
    shown = ends.guarded.stderr[: ends.guarded.stderr.rindex('{"exit_code"')]
    assert shown == ends.alone.stderr


def test_an_error_while_importing_is_shown_as_alone(tmp_path: Path) -> None:
    files = {
        "broken.py": "import warnings\nwarnings.warn('imported', stacklevel=2)\nimport deeper\n",
        "deeper.py": "1 / 0\n",
    }
    ends = both("import broken\n", tmp_path, files=files)
    assert ends.guarded.returncode == ends.alone.returncode == 1
    assert ends.guarded.stderr.startswith(ends.alone.stderr)
    missing = both("import torch\nimport no_such_module\n", tmp_path)
    assert missing.guarded.stderr.startswith(missing.alone.stderr)


def test_the_programs_own_sitecustomize_runs_and_an_error_in_it_is_shown_as_alone(tmp_path: Path) -> None:
    program = "import sys, json\nprint(json.dumps([getattr(sys, 'chained', 0), 'sitecustomize' in sys.modules]))\n"
    theirs = tmp_path / "theirs"
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(theirs), ENVIRONMENT.get("PYTHONPATH", "")])}
    for text in ("import sys\nsys.chained = 1\n", "raise ValueError('theirs')\n"):
        ends = both(program, tmp_path, files={"theirs/sitecustomize.py": text}, env=environment)
        alone, guarded = ends.told()
        assert guarded == alone
        assert ends.guarded.stderr.startswith(ends.alone.stderr)


def test_nothing_of_ours_is_on_standard_output_even_where_the_program_logs_there(tmp_path: Path) -> None:
    program = """
import logging, sys
logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, force=True)
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in (1.0, float("nan"), 1.0):
    optimizer.zero_grad()
    model(torch.full((1, 2), x)).sum().backward()
    optimizer.step()
print("done")
"""
    ends = both(program, tmp_path)
    assert ends.guarded.stdout == ends.alone.stdout == "done\n"
    assert ends.summary["skipped"] == 1


HAND_MADE = {
    "torch.func": """
import torch
from torch.func import functional_call, grad
model = torch.nn.Linear(4, 1)
weights = dict(model.named_parameters())
for _ in range(3):
    slope = grad(lambda p: functional_call(model, p, (torch.ones(2, 4),)).sum())(weights)
    with torch.no_grad():
        for name in weights:
            weights[name].sub_(slope[name], alpha=0.1)
""",
    "autograd.grad": """
import torch
weight = torch.ones(3, requires_grad=True)
for _ in range(3):
    (slope,) = torch.autograd.grad((weight * weight).sum(), [weight])
    with torch.no_grad():
        weight -= 0.1 * slope
""",
    "backward": """
import torch
weight = torch.ones(3, requires_grad=True)
(weight * weight).sum().backward()
""",
}


@pytest.mark.parametrize("kind", HAND_MADE)
def test_a_program_that_updates_by_hand_is_reported_as_not_checked(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HAND_MADE[kind])
    done = subprocess.run(
        [*STEADY, "run", "train.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0
    assert "checked:" in done.stderr
    assert "never trained" not in done.stderr
    assert "applied" not in done.stderr


def test_a_python_without_site_runs_as_alone_and_counts_as_not_guarded(tmp_path: Path) -> None:
    ends = both("import sys, json\nprint(json.dumps(sys.flags.no_site))\n", tmp_path, words=["-S"])
    alone, guarded = ends.told()
    assert guarded == alone == 1
    assert ends.summary["processes"] == 0
